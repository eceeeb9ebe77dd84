"""REGROW_CUDA: what is built with nvcc, without, and with one that fails; and what a build without CUDA says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regrow

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = next(Path(regrow.__file__).parent.glob("libregrow_ops.*"))


def symbols(*options):
    return subprocess.run(["nm", "-D", *options, LIBRARY], capture_output=True, text=True, check=True).stdout


# The library loads where there is no driver, and beside the CUDA runtime of torch.
def test_the_library_shares_no_cuda_symbols():
    runtime = re.compile(r" [A-Za-z] (cuda|__cuda|cu[A-Z])\w*")
    assert not runtime.search(symbols("--undefined-only"))
    assert not runtime.search(symbols("--defined-only"))
    assert re.search(r"^\s+w aoti_torch_get_current_cuda_stream$", symbols("--undefined-only"), re.MULTILINE)
    header = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", header)
    assert "libtorch.so" in needed and not [name for name in needed if "cuda" in name]


SCRIPT = """
set(CMAKE_CXX_COMPILER g++)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
include({root}/cmake/cuda.cmake)
message("found: ${{REGROW_CUDA_FOUND}}")
"""

# An nvcc that fails, as one does that is too old for the host compiler; and one of a toolkit without its runtime.
BROKEN = "echo 'error: unsupported GNU version!' >&2; exit 1"
BARE = "exit 0"


@pytest.fixture
def configure(tmp_path):
    """What CMake says and returns for a value of REGROW_CUDA and the body of the only nvcc there is, or None."""

    def run(option, nvcc):
        if nvcc:
            (tmp_path / "nvcc").write_text(f"#!/bin/sh\n{nvcc}\n")
            (tmp_path / "nvcc").chmod(0o755)
        (tmp_path / "script.cmake").write_text(SCRIPT.format(root=ROOT))
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_HOME"} | {"PATH": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-m", "cmake", f"-DREGROW_CUDA={option}", "-P", tmp_path / "script.cmake"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    return run


@pytest.mark.parametrize(
    "nvcc, problem",
    [
        (None, "there is no nvcc: put it on the PATH or set CUDA_HOME"),
        (BROKEN, r"does not compile a kernel: error: unsupported GNU version!"),
        (BARE, "comes without libcudart_static.a: install the CUDA runtime's development files"),
    ],
)
def test_without_a_working_nvcc(nvcc, problem, configure):
    code, text = configure("AUTO", nvcc)
    assert code == 0 and "found: FALSE" in text
    assert re.search(rf"Building without CUDA: .*{problem}", text)
    assert ("CMake Warning" in text) == (nvcc is not None)  # no nvcc is no surprise
    code, text = configure("ON", nvcc)
    assert code != 0 and re.search(rf"REGROW_CUDA is ON, but .*{problem}", text)
    assert configure("OFF", nvcc) == (0, "found: FALSE")


MAIN = """
#include <cstdio>
#include <exception>

#include "cuda/kernels.h"

template <class F>
void say(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}

int main() {
  using namespace regrow;
  say([] { cuda::tree_attention({}, {}, nullptr); });
  say([] { cuda::tree_attention_backward({}, {}, {}, nullptr); });
  say([] { cuda::lse_merge({}, nullptr); });
  say([] { cuda::lse_merge_backward({}, nullptr); });
  say([] { cuda::replay_gather({}, nullptr); });
  say([] { cuda::replay_scatter({}, nullptr); });
  say([] { cuda::logits_row_stats({}, nullptr); });
  say([] { cuda::logits_pick({}, nullptr); });
  say([] { cuda::logits_row_grad({}, nullptr); });
  say([] { cuda::device_limits(0); });
  say([] { cuda::make_current(0); });
}
"""


def test_a_build_without_cuda_says_so(tmp_path):
    (tmp_path / "main.cpp").write_text(MAIN)
    sources = [tmp_path / "main.cpp", ROOT / "csrc" / "cuda" / "unavailable.cpp"]
    subprocess.run(["g++", "-std=c++20", f"-I{ROOT / 'csrc'}", *sources, "-o", tmp_path / "main"], check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout.splitlines()
    functions = re.findall(r"^\w+ (\w+)\(", (ROOT / "csrc" / "cuda" / "kernels.h").read_text(), re.MULTILINE)
    assert said == ["regrow was built without CUDA: install nvcc and rebuild (REGROW_CUDA=ON)"] * len(functions)
