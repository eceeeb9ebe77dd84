"""Whole models in float64: transformers casts to float32 inside normalisation and rotary, which would hide 1e-12."""

from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode

LOW_PRECISION = (torch.float32, torch.bfloat16)


class LiftedCasts(TorchFunctionMode):
    """Turns every cast to float32 or bfloat16 into one to float64.

    The mode is off inside backward: give checkpointing `context_fn=recompute_lifted` for what it computes again.

    with LiftedCasts():
        model.double()(input_ids).logits.sum().backward()
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "float":
            return args[0].double()
        if name in ("to", "type"):
            args = tuple(lifted(argument) for argument in args)
        if "dtype" in kwargs:
            kwargs["dtype"] = lifted(kwargs["dtype"])
        return function(*args, **kwargs)


def recompute_lifted():
    """The contexts of a checkpointed forward and of its recomputation."""
    return nullcontext(), LiftedCasts()


def lifted(value):
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW_PRECISION else value
