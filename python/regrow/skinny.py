"""A linear layer for few rows, as in decoding: the weight is read once, at the memory's speed."""

import torch

from regrow import _load  # noqa: F401
from regrow.devices import same_device

MAX_ROWS = 32  # beyond them products that pack the weight are the faster ones


def skinny_linear(input, weight, bias=None):
    """`torch.nn.functional.linear` without a gradient, fast on the CPU for a few rows (docs/rollout.md has the times).

    input [..., K], weight [N, K], bias [N] or None, all float64, float32, bfloat16 or float16; returns [..., N] in
    their dtype. Sums are fp32 (fp64 for fp64) in an order that depends on K alone: a row has the same bits whatever
    rows are beside it, on any number of threads. On CUDA it is torch's.
    Raises ValueError for shapes, dtypes and devices that do not go together.
    """
    return torch.ops.regrow.skinny_linear(input, weight, bias)


@torch.library.register_fake("regrow::skinny_linear")
def _(input, weight, bias):
    same_device(input=input, weight=weight, bias=bias)
    return weight.new_empty(*input.shape[:-1], weight.size(0))
