"""What a rollout gives back."""

from dataclasses import dataclass
from functools import cached_property

import torch

from regrow.tree import PrefixTree


@dataclass(frozen=True)
class Stats:
    """tokens: sampled ones; rows: tokens that passed through the model, prompts once; steps: forwards that decode.

    drafted, accepted: draft tokens, also those behind a stop. trace: (live sequences, draft tokens, accepted ones,
    seconds of drafting, seconds of the forward and verification) of each step. predicted_kv_bytes, kv_bytes: keys and
    values at the most.
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
        stepped = sum(live for live, *_ in self.trace)
        return 1 + self.accepted / stepped if stepped else 1.0


@dataclass(frozen=True, eq=False)
class Rollout:
    """Sequences in prompt-major order: those of the first prompt, then those of the second.

    sequences: int64 [P + n] each, prompt and response; prompt_lengths: P of each; logprobs: [n] each, of the response's
    tokens under the model itself; sampling_logprobs: the same after temperature and truncation, the distribution that
    was sampled. reasons: "stop" or "length". numbers: of each sequence among all that were asked for, which is
    0, 1, 2, ... unless the rollout was interrupted: then the finished ones are here. hidden: if asked for, [T,H] on the
    tree's axis, beside each token the state from which it was drawn, that of the token before it; 0 at roots.
    """

    sequences: list
    prompt_lengths: list
    logprobs: list
    sampling_logprobs: list
    reasons: list
    numbers: list
    interrupted: bool
    stats: Stats
    hidden: torch.Tensor | None = None

    @cached_property
    def tree(self):
        """The sequences as a `PrefixTree`, ready for training; raises ValueError if none is finished."""
        return PrefixTree.from_sequences(self.sequences)

    @cached_property
    def response_mask(self):
        """Boolean [T]: the tokens of responses on the tree's axis. Where one is also in a prompt, it is not one."""
        mask = torch.zeros(self.tree.num_tokens, dtype=torch.bool)
        paths = self.paths()
        for path, length in zip(paths, self.prompt_lengths, strict=True):
            mask[path[length:]] = True
        for path, length in zip(paths, self.prompt_lengths, strict=True):
            mask[path[:length]] = False
        return mask

    @property
    def masks(self):
        """Boolean [P + n] for each sequence, true at its response: what objectives of `regrow.replay` take."""
        return [torch.arange(len(s)) >= length for s, length in zip(self.sequences, self.prompt_lengths, strict=True)]

    def responses(self):
        """The sequences without their prompts."""
        return [s[length:] for s, length in zip(self.sequences, self.prompt_lengths, strict=True)]

    def paths(self):
        """The axis positions of each sequence's tokens."""
        return self.tree.gather_index.split(self.tree.cu_seqlens.diff().tolist())

    def on_axis(self, values):
        """`logprobs` or `sampling_logprobs` (or any [n] each) as [T] on the tree's axis, 0 at prompts."""
        out = values[0].new_zeros(self.tree.num_tokens)
        for path, length, value in zip(self.paths(), self.prompt_lengths, values, strict=True):
            out[path[length:]] = value
        return out
