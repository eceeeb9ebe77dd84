"""An objective's derivatives by log-probs and entropies, segment by segment or all at once."""

import torch


class Additive:
    """The derivatives of an objective that is a sum over tokens, segment by segment; `loss` is the sum so far."""

    def __init__(self, objective, tree, zero):
        self.objective, self.tree, self.loss = objective, tree, zero

    def __call__(self, positions, logp, entropy):
        logp.requires_grad_()
        entropy.requires_grad_()
        self.loss = self.loss + differentiated(self.objective.on_tokens(logp, self.tree, entropy, positions))
        return torch.zeros_like(logp) if logp.grad is None else logp.grad, entropy.grad


class Whole:
    """The derivatives of an objective of all log-probs together."""

    def __init__(self, objective, tree, logp, entropy):
        logp, entropy = (x.detach().clone().requires_grad_() for x in (logp, entropy))  # the result's stay as they are
        with torch.enable_grad():
            self.loss = differentiated(objective(logp, tree, entropy))
        self.dlogp = torch.zeros_like(logp) if logp.grad is None else logp.grad
        self.dentropy = entropy.grad

    def __call__(self, positions, logp, entropy):
        return self.dlogp[positions], None if self.dentropy is None else self.dentropy[positions]


def differentiated(loss):
    """The loss, detached, after its backward. Raises ValueError unless it is one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"the objective must return one number, got {describe(loss)}")
    if loss.requires_grad:
        loss.backward()
    return loss.detach().reshape(())


def describe(x):
    return f"a tensor of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
