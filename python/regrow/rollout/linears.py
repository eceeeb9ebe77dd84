"""The model's forward of a step; where it has few rows, linear layers take the product that only reads their weight."""

from contextlib import contextmanager

import torch

from regrow.skinny import MAX_ROWS, skinny_linear


class ModelForward:
    """adapted: a `Replayable`, or a `TransformersModel`.

    A step of few rows on the CPU spends its time on reading weights, and torch's product reads them at half the
    memory's speed or less. So during such a step each plain `nn.Linear` has a forward of ours: none that has its own
    already or holds anything but a dense weight on the CPU, none of a compiled model, none under autocast.
    """

    def __init__(self, adapted):
        self.adapted = adapted
        model = adapted if isinstance(adapted, torch.nn.Module) else adapted.model
        linears = [] if is_compiled(model) else filter(is_plain, model.modules())
        self.forwards = [(linear.__dict__, few_rows(linear)) for linear in linears]

    def __call__(self, step):
        """Hidden states [R,H] of the step's tokens."""
        if step.num_tokens > MAX_ROWS or torch.is_autocast_enabled("cpu"):
            return self.adapted.replay_hidden(step)
        with self.replaced():
            return self.adapted.replay_hidden(step)

    @contextmanager
    def replaced(self):
        try:
            for attributes, forward in self.forwards:
                attributes["forward"] = forward
            yield
        finally:
            for attributes, _ in self.forwards:
                attributes.pop("forward", None)


def is_compiled(model):
    """By `torch.compile` or `module.compile`, anywhere: its guards would see the other forward."""
    return any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules())


def is_plain(module):
    return (
        type(module) is torch.nn.Linear
        and "forward" not in module.__dict__
        and type(module.weight) is torch.nn.Parameter
        and module.weight.device.type == "cpu"
        and module.weight.layout == torch.strided
        and module.weight.is_floating_point()
    )


def few_rows(linear):
    def forward(x):
        return skinny_linear(x, linear.weight, linear.bias)

    return forward
