"""Says before a long build whether `make gpu` can do anything here: exits with the reason if not."""

import os
import shutil
import sys
from pathlib import Path

import torch


def reason(torch_cuda, available, nvcc):
    """None, or what is missing and how to get it. `torch_cuda`: the CUDA version of torch, None without."""
    if torch_cuda is None:
        return "this torch has no CUDA: install one that has (make clean, then make gpu TORCH=...)"
    if not available:
        return "there is no GPU (torch.cuda.is_available() is False). `make test` needs none"
    if nvcc is None:
        return "there is no nvcc: put it on the PATH or set CUDA_HOME"
    return None


def complaint():
    """`reason` for this machine, as an error message."""
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc") or (home and shutil.which("nvcc", path=str(Path(home) / "bin")))
    missing = reason(torch.version.cuda, torch.cuda.is_available(), nvcc)
    return missing and f"make gpu builds, tests and measures on a GPU: {missing}"


if __name__ == "__main__":
    sys.exit(complaint())
