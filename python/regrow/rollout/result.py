"""What a rollout gives back."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from regrow.tree import PrefixTree


class StepStats(NamedTuple):
    """One decoding step: live sequences, tokens drafted for them and accepted (none behind a stop), seconds of drafting
    and of the rest: the forward and verification."""

    live: int
    drafted: int
    accepted: int
    draft_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Stats:
    """tokens: sampled ones; rows: tokens that passed through the model, prompts once; steps: forwards that decode.

    drafted, accepted: draft tokens, over all steps. trace: a `StepStats` for each. predicted_kv_bytes, kv_bytes: of
    keys and values, at the most.
    """

    seconds: float
    prefill_seconds: float
    tokens: int
    rows: int
    steps: int
    drafted: int
    accepted: int
    predicted_kv_bytes: int
    kv_bytes: int
    trace: list

    @property
    def tokens_per_second(self):
        return self.tokens / self.seconds

    @property
    def acceptance_length(self):
        """Tokens that a sequence gains by a step, on average: 1 without speculation."""
        stepped = sum(step.live for step in self.trace)
        return 1 + self.accepted / stepped if stepped else 1.0


@dataclass(frozen=True, eq=False)
class Rollout:
    """Sequences in prompt-major order: those of the first prompt, then those of the second.

    sequences: int64 [P + n] each, prompt and response; prompt_lengths: P of each; logprobs: [n] each, of the response's
    tokens under the model itself; sampling_logprobs: the same after temperature and truncation, the distribution that
    was sampled. reasons: "stop" or "length". numbers: of each sequence among all that were asked for, which is
    0, 1, 2, ... unless the rollout was interrupted: then the finished ones are here. seed: what they were drawn with.
    hidden: if asked for, [T,H] on the tree's axis, beside each token the state from which it was drawn, that of the
    token before it; 0 at roots. The tree and what lies on its axis are on `device`, the model's; lists of one tensor
    for each sequence on the CPU.
    """

    sequences: list
    prompt_lengths: list
    logprobs: list
    sampling_logprobs: list
    reasons: list
    numbers: list
    interrupted: bool
    seed: int
    stats: Stats
    device: torch.device
    hidden: torch.Tensor | None = None

    @cached_property
    def tree(self):
        """The sequences as a `PrefixTree`, ready for training; ValueError if none is finished."""
        if not self.sequences:
            raise ValueError("no sequence is finished: the rollout was interrupted before")
        return PrefixTree.from_sequences(self.sequences).to(self.device)

    @property
    def masks(self):
        """Boolean [P + n] for each sequence, true at its response: what objectives of `regrow.replay` take."""
        return [torch.arange(len(s)) >= length for s, length in zip(self.sequences, self.prompt_lengths, strict=True)]

    @property
    def old_logprobs(self):
        """`logprobs` as [P + n] for each sequence, 0 at its prompt: what objectives take beside `masks`."""
        return [
            torch.cat([logprobs.new_zeros(length), logprobs])
            for logprobs, length in zip(self.logprobs, self.prompt_lengths, strict=True)
        ]

    @cached_property
    def response_mask(self):
        """Boolean [T]: the tokens of any response on the tree's axis; some may be in another sequence's prompt."""
        mask = torch.zeros(self.tree.num_tokens, dtype=torch.bool, device=self.device)
        for path, length in zip(self.paths(), self.prompt_lengths, strict=True):
            mask[path[length:]] = True
        return mask

    def responses(self):
        """The sequences without their prompts."""
        return [s[length:] for s, length in zip(self.sequences, self.prompt_lengths, strict=True)]

    def paths(self):
        """The axis positions of each sequence's tokens."""
        return self.tree.gather_index.split(self.tree.cu_seqlens.diff().tolist())

    def on_axis(self, values):
        """`logprobs` or `sampling_logprobs` (or any [n] each) as [T] on the tree's axis, 0 elsewhere."""
        out = torch.zeros(self.tree.num_tokens, dtype=values[0].dtype, device=self.device)
        for path, length, value in zip(self.paths(), self.prompt_lengths, values, strict=True):
            out[path[length:]] = value.to(self.device)
        return out
