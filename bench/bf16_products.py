"""bf16 products at the speed of fp32 ones, for CPUs whose own are a hundred times slower (no AVX-512, no AMX)."""

import time
from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default}


class InFp32(TorchDispatchMode):
    """Products of bf16 tensors: operands widened, summed in fp32, rounded once. That is what bf16 hardware does."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        wide = function in PRODUCTS and args[-1].dtype == torch.bfloat16
        if not wide:
            return function(*args, **(kwargs or {}))
        return function(*(x.float() for x in args), **(kwargs or {})).bfloat16()


def products(size=256):
    """A context in which bf16 products are fast; which, its name says."""
    a = torch.randn(size, size)
    slow, fast = seconds(a.bfloat16()), seconds(a)
    return (InFp32(), "made in fp32") if slow > 4 * fast else (nullcontext(), "the library's")


def seconds(a):
    a @ a
    began = time.perf_counter()
    a @ a
    return time.perf_counter() - began
