"""A causal LM's head: what turns its last hidden states into log-probs."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Head:
    """Logits are `softcap * tanh(scale * hidden @ weight.T / softcap)`, without a softcap `scale * hidden @ weight.T`.

    weight [V,H].
    """

    weight: torch.Tensor
    scale: float = 1.0
    softcap: float | None = None

    def options(self, temperature):
        """`temperature=` and `softcap=` with which `regrow.row_logprobs` and `tree_logprobs` see these logits."""
        # scale * x / temperature, and with a softcap c: c tanh(scale * x / c)
        return dict(
            temperature=temperature / self.scale, softcap=None if self.softcap is None else self.softcap / self.scale
        )
