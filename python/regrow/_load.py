"""Loads the compiled parts: the op library (`torch.ops.regrow`) and the pybind11 module `regrow._C`."""

from pathlib import Path

import torch

_FOLDER = Path(__file__).resolve().parent


def _load_ops():
    library = next(iter(_FOLDER.glob("libregrow_ops.*")), None)
    if library is None:
        raise ImportError(f"regrow's op library is not in {_FOLDER}: build it with `make build` or `pip install .`")
    torch.ops.load_library(str(library))


_load_ops()

from regrow import _C  # noqa: E402

__all__ = ["_C"]
