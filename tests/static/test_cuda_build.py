"""What nvcc makes of the device code: it compiles for 8.0 and 9.0, within its registers, with the instructions meant.

No GPU is needed. Without nvcc these tests are skipped.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc")
CHIPS = ["80", "90"]

pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")

# Source -> kernel -> how often it is instantiated, and the configuration that has its budget.
KERNELS = {
    "logits": {
        "logits_row_stats": (16, "LogitsRowConfig"),
        "logits_pick": (8, "LogitsRowConfig"),
        "logits_row_grad": (16, "LogitsRowConfig"),
    },
    "lse_merge": {
        "lse_merge": (4, "LseMergeConfig"),
        "lse_merge_backward": (4, "LseMergeConfig"),
        "lse_merge_dsinks": (2, "LseMergeConfig"),
    },
    "replay": {"replay_gather": (3, "ReplayGatherConfig"), "replay_scatter": (8, "ReplayScatterConfig")},
    "tile_matmul": {"tile_matmul": (4, "TileMatmulConfig")},
}


def nvcc(*arguments):
    flags = ["-std=c++20", "-O3", f"-I{ROOT / 'csrc'}", "-Werror", "all-warnings"]
    result = subprocess.run([NVCC, *flags, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Source name -> what ptxas says of each entry: (chip, mangled name, registers, bytes of spills and stack)."""
    folder = tmp_path_factory.mktemp("cuda")
    chips = [f"-gencode=arch=compute_{chip},code=sm_{chip}" for chip in CHIPS]
    entries = {}
    for source in KERNELS:
        log = nvcc("-c", ROOT / "csrc" / "cuda" / f"{source}.cu", "-o", folder / f"{source}.o", *chips, "-Xptxas", "-v")
        entries[source] = re.findall(
            r"Compiling entry function '(\w+)' for 'sm_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
            r"(\d+) bytes spill loads.*?Used (\d+) registers",
            log,
            re.DOTALL,
        )
    return entries


def budget(config):
    text = "".join(path.read_text() for path in (ROOT / "csrc" / "kernels").glob("*.cuh"))
    return int(re.search(rf"struct {config} .*?kMaxRegisters = (\d+);", text, re.DOTALL).group(1))


@pytest.mark.parametrize("source, kernel", [(source, kernel) for source in KERNELS for kernel in KERNELS[source]])
@pytest.mark.parametrize("chip", CHIPS)
def test_registers_and_spills(source, kernel, chip, compiled):
    entries = [entry for entry in compiled[source] if entry[1] == chip and f"{len(kernel)}{kernel}" in entry[0]]
    instantiations, config = KERNELS[source][kernel]
    assert len(entries) == instantiations
    for name, _, stack, stores, loads, registers in entries:
        assert int(stack) == int(stores) == int(loads) == 0, f"{name} uses local memory"
        assert int(registers) <= budget(config), name


# What must stand in the code, by source.
INSTRUCTIONS = {
    "tile_matmul": [
        r"cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+\], 16",
        r"cp\.async\.wait_group 1",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16",
        r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
        r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32",
        r"bar(rier)?\.sync",
    ],
    "logits": [r"ld\.global\.v4", r"st\.global\.v4", r"cvt\.rn\.bf16\.f32", r"cvt\.rn\.f16\.f32", r"__assertfail"],
    "lse_merge": [r"ld\.global\.v4", r"st\.global\.v4"],
    "replay": [r"ld\.global\.v4", r"st\.global\.v4", r"cvt\.rn\.bf16\.f32", r"cvt\.rn\.f16\.f32", r"__assertfail"],
}


@pytest.mark.parametrize("source", INSTRUCTIONS)
def test_instructions(source, tmp_path):
    nvcc("-ptx", "-arch=compute_80", ROOT / "csrc" / "cuda" / f"{source}.cu", "-o", tmp_path / "out.ptx")
    ptx = (tmp_path / "out.ptx").read_text()
    for pattern in INSTRUCTIONS[source]:
        assert re.search(pattern, ptx), f"no {pattern} in {source}.cu"
    assert not re.search(r"\bred\.|\batom\.", ptx), "atomics would make sums depend on timing"
    assert not re.search(r"\.local\b", ptx), "an array lives in local memory"
