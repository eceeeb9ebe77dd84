"""The formulas that objectives are made of: clipped ratios, estimators of KL, aggregations."""

import math
from dataclasses import dataclass

import torch

from regrow.replay.objectives.inputs import read_number

KL_ESTIMATORS = ("k1", "k2", "k3")
AGGREGATIONS = ("token-mean", "sequence-mean", "sequence-sum")


@dataclass(frozen=True)
class Clip:
    """The interval [1 - low, 1 + high] for ratios, and PPO's clipped surrogate, in logarithms."""

    low: float  # in [0, 1]; 1: no lower bound
    high: float  # >= 0
    dual: float | None = None  # > 1: the largest ratio where the advantage is negative

    @classmethod
    def read(cls, clip, dual=None):
        """`clip` is one number for both sides, or (low, high). Raises ValueError for an empty or unbounded interval."""
        sides = tuple(clip) if isinstance(clip, list | tuple) else (clip, clip)
        if len(sides) != 2:
            raise ValueError(f"clip is {clip}: give one number, or (low, high)")
        low, high = read_number("clip's low side", sides[0], 0, 1), read_number("clip's high side", sides[1], 0)
        if dual is not None and not (dual := read_number("dual_clip", dual)) > 1:
            raise ValueError(f"dual_clip is {dual:g}: give a ratio above 1 (the paper takes 3), or None")
        return cls(low, high, dual)

    @property
    def log_bounds(self):
        return math.log1p(-self.low) if self.low < 1 else -math.inf, math.log1p(self.high)

    def ratio(self, log_ratio):
        """The ratio, inside the interval."""
        return log_ratio.clamp(*self.log_bounds).exp()

    def surrogate(self, log_ratio, advantages):
        """min(r A, clip(r) A), with `dual` at least `dual` A where A < 0. log_ratio, advantages and result: [N].

        The minimum bounds r from one side: from above where A >= 0, from below where A < 0. Clamping the logarithm says
        just that; what is clipped has gradient 0, and no ratio that is clipped can overflow.
        """
        log_low, log_high = self.log_bounds
        falls = advantages < 0
        lower = torch.full_like(log_ratio, -math.inf).masked_fill(falls, log_low)
        upper = torch.full_like(log_ratio, log_high).masked_fill(falls, math.log(self.dual) if self.dual else math.inf)
        return advantages * log_ratio.clamp(lower, upper).exp()


def kl_estimate(estimator, logp, reference_logprobs):
    """Schulman's k1, k2 or k3 for KL(policy || reference), from the log-probs of tokens that the policy sampled.

    With r = reference probability / policy probability: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r.
    http://joschu.net/blog/kl-approx.html. As a loss, k2 has the gradient of KL in expectation (on-policy); k3 that of
    the reverse direction, KL(reference || policy); k1 has none.
    """
    log_r = reference_logprobs - logp
    if estimator == "k1":
        return -log_r
    if estimator == "k2":
        return log_r.square() / 2
    return log_r.expm1() - log_r


def token_shares(aggregation, num_responses):
    """fp64 [num_sequences]: what each response token of a sequence counts in the loss.

    num_responses int64 [num_sequences]. "token-mean": 1 / all response tokens; "sequence-mean": the mean over sequences
    of each one's mean; "sequence-sum": the mean over sequences of each one's sum; a number: 1 / that. A sequence
    without response tokens adds nothing, and is counted among the sequences.
    Raises ValueError for another aggregation and a number that is not above 0.
    """
    counts = num_responses.to(torch.float64)
    if aggregation == "token-mean":
        return torch.full_like(counts, 1 / max(int(num_responses.sum()), 1))
    if aggregation == "sequence-mean":
        return 1 / (counts.clamp(min=1) * counts.numel())
    if aggregation == "sequence-sum":
        return torch.full_like(counts, 1 / counts.numel())
    if isinstance(aggregation, str) or not (number := read_number("aggregation", aggregation)) > 0:
        raise ValueError(f"aggregation is {aggregation!r}: use {', '.join(map(repr, AGGREGATIONS))}, or a number > 0")
    return torch.full_like(counts, 1 / number)


@dataclass(frozen=True)
class Penalties:
    """What is added to each response token's loss: KL to a reference, and less entropy."""

    kl_coefficient: float
    kl_estimator: str
    entropy_coefficient: float

    @classmethod
    def read(cls, kl_coefficient, kl_estimator, entropy_coefficient, reference_logprobs):
        """Raises ValueError for a coefficient without a reference or the reverse, and an unknown estimator."""
        if kl_coefficient and reference_logprobs is None:
            raise ValueError(f"kl_coefficient is {kl_coefficient}, but reference_logprobs is None: give both")
        if kl_coefficient is None and reference_logprobs is not None:
            raise ValueError("reference_logprobs is given without kl_coefficient: give both (0 leaves the KL away)")
        if kl_estimator not in KL_ESTIMATORS:
            raise ValueError(f"kl_estimator is {kl_estimator!r}: use one of {', '.join(map(repr, KL_ESTIMATORS))}")
        return cls(
            read_number("kl_coefficient", kl_coefficient or 0.0),
            kl_estimator,
            read_number("entropy_coefficient", entropy_coefficient),
        )

    def add(self, losses, logp, entropy, data):
        """losses, logp, entropy [N], data of the same response tokens -> [N]; with coefficient 0 they are not read."""
        if self.kl_coefficient:
            losses = losses + self.kl_coefficient * kl_estimate(self.kl_estimator, logp, data["reference_logprobs"])
        if self.entropy_coefficient:
            losses = losses - self.entropy_coefficient * entropy
        return losses
