"""What every op refuses: options that would need a gradient, and second derivatives."""

import torch


def plain_number(name, value):
    """The option as a Python float, or None. Raises ValueError for a tensor that wants a gradient it could not get."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise ValueError(f"{name} is a tensor that requires a gradient, and gets none: pass float({name})")
    return float(value)


def refuse_second_derivative(op, forward_name):
    """Makes a differentiation of the backward op raise RuntimeError; autograd would leave its terms out."""

    def backward(ctx, *gradients):
        raise RuntimeError(f"{forward_name} is not twice differentiable: leave create_graph=True away")

    torch.library.register_autograd(op, backward)
