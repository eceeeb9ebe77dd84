"""compute-sanitizer over every kernel, each tool in a process of its own."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, ROOT / "tests" / "gpu" / "every_kernel.py"]


def find_sanitizer():
    """The package nvidia-cuda-sanitizer-api's, else the toolkit's; None without either."""
    try:
        files = metadata.files("nvidia-cuda-sanitizer-api") or []
    except metadata.PackageNotFoundError:
        files = []
    found = [file.locate() for file in files if file.parts[-2:] == ("bin", "compute-sanitizer")]
    return found[0] if found else shutil.which("compute-sanitizer")


def run(command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=1800)
    return result.returncode, result.stdout + result.stderr


def kernels():
    """Names of all kernels that csrc/cuda includes, but the one that only proves the tiles."""
    sources = [path.read_text() for path in (ROOT / "csrc" / "cuda").iterdir() if path.suffix in (".cu", ".h")]
    headers = {name for text in sources for name in re.findall(r'#include "kernels/(\w+\.cuh)"', text)}
    texts = [(ROOT / "csrc" / "kernels" / name).read_text() for name in headers]
    names = {name for text in texts for name in re.findall(r"GLOBAL void LAUNCH_BOUNDS\([^)]*\)\s+(\w+)\(", text)}
    return names - {"tile_matmul", "copy_pipeline"}


def test_kernels_are_found():
    known = {"lse_merge", "replay_gather", "replay_scatter", "logits_row_stats", "logits_pick", "logits_row_grad"}
    assert known | {"tree_attention", "tree_attention_merge"} <= kernels()
    assert {"tree_attention_backward", "attention_delta", "attention_dsinks"} <= kernels()


def test_script(device):
    """It runs, and says what ran: on the CPU the ops, on a GPU every kernel that there is."""
    code, output = run([*SCRIPT, "--device", device, "--names"])
    assert code == 0, output
    ran = set(re.findall(r"regrow::(\w+)", output))
    if device.type == "cuda":
        assert kernels() <= ran, f"every_kernel.py does not run {kernels() - ran}"
    else:
        assert {"tree_attention_fwd", "lse_merge", "replay_gather", "replay_scatter"} <= ran
        assert {"tree_attention_bwd", "tree_attention_bwd_accum"} <= ran


# initcheck also tracks what torch's own kernels read: only ours are looked at.
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizer(tool, only_gpu):
    sanitizer = find_sanitizer()
    if sanitizer is None:
        pytest.skip("no compute-sanitizer: pip install nvidia-cuda-sanitizer-api")
    code, output = run(
        [sanitizer, "--tool", tool, "--error-exitcode", 99, "--kernel-name", "kernel_substring=regrow", *SCRIPT]
    )
    assert code == 0, output[-5000:]
    assert "ERROR SUMMARY: 0 errors" in output or "0 hazards displayed" in output, output[-5000:]
