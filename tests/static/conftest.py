"""The CUDA part, compiled once per session and only if a test asks for it; without nvcc its tests are skipped."""

from types import SimpleNamespace

import pytest

import cuda_build


@pytest.fixture(scope="session")
def cuda_objects(tmp_path_factory):
    """Source -> (object, ptxas' log, processor seconds)."""
    if cuda_build.find_nvcc() is None:
        pytest.skip("nvcc is not on the PATH and CUDA_HOME names none")
    return cuda_build.compile_all(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def cuda_entries(cuda_objects):
    """Every instantiation of every kernel, on each chip."""
    return [entry for source, (_, log, _) in cuda_objects.items() for entry in cuda_build.parse_ptxas(log, source)]


@pytest.fixture(scope="session")
def cuda_budgets(cuda_entries, tmp_path_factory):
    """(kernel, template arguments) -> Budget."""
    return cuda_build.read_budgets(cuda_entries, tmp_path_factory.mktemp("budgets"))


@pytest.fixture(scope="session")
def machine_code(cuda_objects):
    """`sass`: (chip, mangled name) -> opcodes; `ptx`: source -> names of the PTX files in its object."""
    for tool in ("cuobjdump", "nvdisasm"):
        if cuda_build.find_tool(tool) is None:
            pytest.skip(f"no {tool}: pip install nvidia-cuda-{tool}")
    sass, ptx = {}, {}
    for source, (target, _, _) in cuda_objects.items():
        sass |= cuda_build.disassemble(target)
        ptx[source] = cuda_build.embedded_ptx(target)
    return SimpleNamespace(sass=sass, ptx=ptx)
