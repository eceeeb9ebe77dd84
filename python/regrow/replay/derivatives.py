"""An objective's derivatives by log-probs and entropies, segment by segment or all at once."""

import torch


class Additive:
    """The derivatives of an objective that is a sum over tokens, segment by segment; `loss` is the sum so far.

    depends: whether any part was a function of the log-probs or entropies.
    """

    def __init__(self, objective, tree, zero):
        self.objective, self.tree, self.loss, self.depends = objective, tree, zero, False

    def __call__(self, positions, logp, entropy):
        logp.requires_grad_()
        entropy.requires_grad_()
        part = self.objective.on_tokens(logp, self.tree, entropy, positions)
        self.loss = self.loss + differentiated(part)
        self.depends |= part.requires_grad
        return derivative(logp), entropy.grad


class Whole:
    """The derivatives of an objective of all log-probs together."""

    def __init__(self, objective, tree, logp, entropy):
        logp, entropy = (x.detach().clone().requires_grad_() for x in (logp, entropy))  # the result's stay as they are
        with torch.enable_grad():
            loss = objective(logp, tree, entropy)
            self.loss = differentiated(loss)
        self.depends = loss.requires_grad
        self.dlogp, self.dentropy = derivative(logp), entropy.grad

    def __call__(self, positions, logp, entropy):
        return self.dlogp[positions], None if self.dentropy is None else self.dentropy[positions]


def derivative(x):
    return torch.zeros_like(x) if x.grad is None else x.grad


def differentiated(loss):
    """The loss, detached, after its backward. Raises ValueError unless it is one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"the objective must return one number, got {describe(loss)}")
    if loss.requires_grad:
        loss.backward()
    return loss.detach().reshape(())


def describe(x):
    return f"a tensor of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
