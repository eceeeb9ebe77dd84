"""csrc/cuda/launch.h and the example, compiled by nvcc; where there is no GPU, a launch fails and says why.

Without nvcc these tests are skipped.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc")
HAS_GPU = Path("/dev/nvidiactl").exists()

pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")

MAIN = """
#include <cstdio>

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace regrow {

GLOBAL void nothing(int64_t) {}

template <class Error>
void say(LaunchShape shape) {
  try {
    cuda::Launcher("nothing", nullptr)(shape, &nothing, 1);
    std::puts("launched");
  } catch (const Error& error) {
    std::puts(error.what());
  }
}

void say_limits() {
  for (int i = 0; i < 2; ++i) try {
      const cuda::DeviceLimits limits = cuda::device_limits(0);
      std::printf("%d %d %d %d\\n", limits.compute_capability, limits.multiprocessors, limits.shared_bytes_per_block,
                  limits.shared_bytes_per_multiprocessor);
    } catch (const std::runtime_error& error) {
      std::puts(error.what());
    }
}

}  // namespace regrow

int main() {
  using regrow::say;
  say<std::invalid_argument>({.blocks = int64_t(1) << 31});
  say<std::invalid_argument>({.blocks = 0});
  say<std::invalid_argument>({.blocks_y = 65536});
  say<std::invalid_argument>({.threads = 1025});
  say<std::runtime_error>({.shared_bytes = 1 << 20});
  say<std::runtime_error>({.blocks = 3, .threads = 64});
  regrow::say_limits();
}
"""


@pytest.fixture
def compile_and_run(tmp_path):
    def run(*sources):
        flags = ["-std=c++20", "-O3", "-arch=native" if HAS_GPU else "-arch=sm_90", "-Werror", "all-warnings"]
        subprocess.run([NVCC, *flags, "-I", ROOT / "csrc", *sources, "-o", tmp_path / "program"], check=True)
        return subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)

    return run


def test_launches_are_checked(compile_and_run, tmp_path):
    (tmp_path / "main.cu").write_text(MAIN)
    result = compile_and_run(tmp_path / "main.cu", ROOT / "csrc" / "cuda" / "device_limits.cu")
    *refused, too_much_memory, launched, limits_of_device, again = result.stdout.splitlines()
    assert limits_of_device == again
    limits = "a grid has 1 to 2147483647 x 65535 blocks of 1 to 1024 threads: split the call over rows"
    for shape, text in zip(
        ["2147483648 x 1 blocks, 128 threads", "0 x 1 blocks, 128 threads", "1 x 65536 blocks, 128 threads",
         "1 x 1 blocks, 1025 threads"],
        refused,
        strict=True,
    ):  # fmt: skip
        assert text.startswith(f"nothing of {shape}, 0 bytes of shared memory: {limits}")
    assert too_much_memory.startswith("nothing of 1 x 1 blocks, 128 threads, 1048576 bytes of shared memory: ")
    if HAS_GPU:
        assert "(cudaErrorInvalidValue)" in too_much_memory and launched == "launched"
        capability, multiprocessors, per_block, per_multiprocessor = map(int, limits_of_device.split())
        assert capability >= 80 and multiprocessors > 0 and 48 << 10 < per_block < per_multiprocessor
    else:
        for text in (too_much_memory, launched):
            assert "(cudaErrorInsufficientDriver)" in text or "(cudaErrorNoDevice)" in text
        assert launched.startswith("nothing of 3 x 1 blocks, 64 threads, 0 bytes of shared memory: ")
        assert limits_of_device.startswith("attribute 75 of CUDA device 0: ")


def test_example(compile_and_run):
    result = compile_and_run(ROOT / "examples" / "merge_partials.cu")
    if HAS_GPU:
        assert result.returncode == 0 and "1000 queries x 8 heads from 3 partials: largest error" in result.stdout
    else:
        assert result.returncode == 1 and result.stderr.startswith("cudaMalloc of 3072000 floats: ")
