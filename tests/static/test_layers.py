"""Each layer includes only layers to its left, and torch stays in the op layer (docs/design.md, layers)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["platform", "tile", "tree", "kernels"]
ALLOWED = {layer: set(LAYERS[: i + 1]) for i, layer in enumerate(LAYERS)}
# Backends do not know each other. The CPU's kernels are a second implementation: they use no tile.
ALLOWED |= {backend: {*LAYERS, backend} for backend in ("cuda", "emulator")}
ALLOWED |= {
    "cpu": {*LAYERS, "cpu"} - {"tile"},
    "ops": {*LAYERS, "cpu", "cuda", "ops"},
    "bindings": {"platform", "tree", "kernels"},
}
SOURCES = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp", ".cuh", ".cu"))


def includes(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def layer(path):
    return path.relative_to(ROOT / "csrc").parts[0]


def test_every_folder_is_a_layer():
    assert {layer(path) for path in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_point_left(path):
    for name in includes(path):
        first = name.split("/")[0]
        if first in ALLOWED:
            assert first in ALLOWED[layer(path)], f"{name} lies to the right of {layer(path)}"
        if first in ("torch", "ATen", "c10"):
            assert layer(path) == "ops", f"{name}: torch stays in csrc/ops"
            assert name.startswith(("torch/csrc/stable/", "torch/headeronly/")), f"{name} is not in the stable ABI"


# One place decides between nvcc and the emulator: above it, device code is the same text for both.
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_compilers_are_told_apart_below_the_kernels(path):
    if layer(path) not in ("platform", "tile"):
        assert "__CUDACC__" not in path.read_text()


# What a header uses it includes, or it compiles behind some others only. Those of other layers need torch or pybind11.
HEADERS = [path for path in SOURCES if path.suffix in (".h", ".cuh") and layer(path) in LAYERS]


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_headers_stand_alone(path):
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++20",
        "-w",
        "-fsyntax-only",
        f"-I{ROOT / 'csrc'}",
        "-x",
        "c++",
        path,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
