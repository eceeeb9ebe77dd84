"""The CUDA part, compiled once per session and only if a test asks for it; without nvcc its tests are skipped."""

from types import SimpleNamespace

import pytest

import cuda_build


@pytest.fixture(scope="session")
def cuda_objects(tmp_path_factory):
    """(object, ptxas' log, processor seconds) of every source."""
    if cuda_build.find_nvcc() is None:
        pytest.skip("nvcc is not on the PATH and CUDA_HOME names none")
    return cuda_build.compile_all(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def cuda_entries(cuda_objects):
    """Every instantiation of every kernel, on each chip."""
    return [entry for _, log, _ in cuda_objects for entry in cuda_build.parse_ptxas(log)]


@pytest.fixture(scope="session")
def instantiations(cuda_entries):
    """instantiations(kernel, chip) -> its entries."""

    def of(kernel, chip):
        found = [entry for entry in cuda_entries if (entry.kernel, entry.chip) == (kernel, chip)]
        assert found, f"no {kernel.name} for sm_{chip}"
        return found

    return of


@pytest.fixture(scope="session")
def cuda_budgets(cuda_entries, tmp_path_factory):
    """(kernel, template arguments) -> Budget."""
    return cuda_build.read_budgets(cuda_entries, tmp_path_factory.mktemp("budgets"))


@pytest.fixture(scope="session")
def machine_code(cuda_objects):
    """`sass`: (chip, mangled name) -> opcodes; `ptx`: names of the PTX files in each object."""
    for tool in ("cuobjdump", "nvdisasm"):
        if cuda_build.find_tool(tool) is None:
            pytest.skip(f"no {tool}: pip install nvidia-cuda-{tool}")
    sass = {}
    for target, _, _ in cuda_objects:
        sass |= cuda_build.disassemble(target)
    return SimpleNamespace(sass=sass, ptx=[cuda_build.embedded_ptx(target) for target, _, _ in cuda_objects])
