"""Each objective with the formula that it must agree with."""

from dataclasses import dataclass

import torch

import objective_formulas as plain
from objective_batches import derivatives, leaves
from regrow.replay import objectives


def pairs_of(batch):
    """Indices of some pairs: each sequence but the last against the next; the first in two of them."""
    last = len(batch.sequences) - 1
    return [*range(last), 0], [*range(1, last + 1), last]


@dataclass
class Case:
    """One objective: how it is made of a batch, and what it is, as a function of its sequences."""

    make: callable
    plain: callable  # batch -> function of a list of `Sequence`
    on_policy: bool = False
    min_sequences: int = 1


def _policy(name, loss, aggregate, *, dense=False, **options):
    def make(batch):
        advantages = batch.token_advantages if dense else batch.advantages
        return getattr(objectives, name)(batch.mask, advantages, old_logprobs=batch.old, **options)

    return Case(make, lambda batch: plain.of_tokens(loss, aggregate))


def _penalised(estimator):
    def make(batch):
        return objectives.GRPO(
            batch.mask, batch.advantages, old_logprobs=batch.old, reference_logprobs=batch.reference,
            kl_coefficient=0.05, kl_estimator=estimator, entropy_coefficient=0.3,
        )  # fmt: skip

    loss = plain.with_penalties(plain.ppo, getattr(plain, estimator), 0.05, 0.3)
    return Case(make, lambda batch: plain.of_tokens(loss, plain.mean_over_sequences))


def _gspo(**options):
    def make(batch):
        return objectives.GSPO(batch.mask, batch.advantages, old_logprobs=batch.old, **options)

    return Case(make, lambda batch: plain.gspo(*options["clip"]))


def _penalised_gspo():
    def make(batch):
        return objectives.GSPO(
            batch.mask, batch.advantages, clip=0.2, old_logprobs=batch.old, reference_logprobs=batch.reference,
            kl_coefficient=0.05, entropy_coefficient=0.3,
        )  # fmt: skip

    penalties = plain.of_tokens(plain.with_penalties(lambda s: 0.0, plain.k3, 0.05, 0.3), plain.mean_over_sequences)
    return Case(make, lambda batch: lambda sequences: plain.gspo(0.2, 0.2)(sequences) + penalties(sequences))


def _dpo(smoothing=0.0, normalised=False):
    def make(batch):
        chosen, rejected = pairs_of(batch)
        return objectives.DPO(
            batch.mask, batch.reference, chosen=chosen, rejected=rejected, beta=0.7, label_smoothing=smoothing,
            length_normalised=normalised,
        )  # fmt: skip

    return Case(make, lambda batch: plain.dpo(*pairs_of(batch), 0.7, smoothing, normalised), min_sequences=2)


def _sft(loss, aggregate, weights=lambda batch: None, **options):
    return Case(
        lambda batch: objectives.SFT(batch.mask, weights=weights(batch), **options),
        lambda batch: plain.of_tokens(loss, aggregate),
    )


TOKEN_SUMS = {
    "ppo": _policy("PPO", plain.ppo, plain.mean_over_tokens),
    "ppo, dense": _policy(
        "PPO", plain.dense_ppo, plain.sum_over_sequences, dense=True, clip=(0.3, 0.1), aggregation="sequence-sum"
    ),
    "ppo, dual clip": _policy("PPO", plain.dual_clip, plain.divided_by(7.0), dual_clip=1.5, aggregation=7),
    "ppo, on policy": Case(
        lambda batch: objectives.PPO(batch.mask, batch.advantages),
        lambda batch: plain.of_tokens(plain.ppo, plain.mean_over_tokens),
        on_policy=True,
    ),
    "grpo": _policy("GRPO", plain.ppo, plain.mean_over_sequences),
    "grpo, k1": _penalised("k1"),
    "grpo, k2": _penalised("k2"),
    "grpo, k3": _penalised("k3"),
    "dr. grpo": Case(
        lambda batch: objectives.DrGRPO(batch.mask, batch.advantages, length=16, old_logprobs=batch.old),
        lambda batch: plain.of_tokens(plain.ppo, plain.divided_by(16 * len(batch.sequences))),
    ),
    "dapo": _policy("DAPO", plain.dapo, plain.mean_over_tokens),
    "cispo": _policy("CISPO", plain.cispo, plain.mean_over_tokens, clip=(0.3, 0.4)),
    "cispo, no lower bound": _policy("CISPO", plain.upper_cispo, plain.mean_over_tokens, clip=(1, 0.4)),
    "sft": _sft(lambda s: -s.logp, plain.mean_over_tokens),
    "sft, weights": _sft(
        lambda s: -s.weights * s.logp,
        plain.mean_over_sequences,
        weights=lambda batch: batch.weights,
        aggregation="sequence-mean",
    ),
}
# No sums over tokens: the engine needs all log-probs before it knows any gradient.
OTHERS = {
    "gspo": _gspo(clip=(0.1, 0.2)),
    "gspo, on policy": Case(
        lambda batch: objectives.GSPO(batch.mask, batch.advantages),
        lambda batch: plain.gspo(3e-4, 4e-4),
        on_policy=True,
    ),
    "gspo, penalties": _penalised_gspo(),
    "dpo": _dpo(),
    "dpo, smoothed": _dpo(smoothing=0.1),
    "dpo, by length": _dpo(normalised=True),
}
CASES = TOKEN_SUMS | OTHERS


def of_formula(case, batch):
    logprobs, entropy = leaves(batch)
    loss = case.plain(batch)(plain.each_sequence(batch, logprobs, entropy, case.on_policy))
    return derivatives(torch.as_tensor(loss, dtype=torch.float64), logprobs, entropy)
