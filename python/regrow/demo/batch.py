"""The data of one update, and its objective for the replay engine."""

from dataclasses import dataclass

import torch

import regrow
from regrow.replay.objectives import GRPO, group_advantages


@dataclass(frozen=True)
class Batch:
    """The same for every way to compute the update. Each field has one entry for each sequence.

    sequences: prompt + response, int64 [L]; prompt_lengths: where each response starts; advantages: numbers;
    old_logp: the response tokens' log-probs under the policy that sampled them, [L - prompt length], or None: under the
    policy as it is.
    """

    sequences: list[torch.Tensor]
    prompt_lengths: list[int]
    advantages: list[float]
    old_logp: list[torch.Tensor] | None = None

    @property
    def num_tokens(self):
        return sum(len(sequence) for sequence in self.sequences)

    @property
    def num_response_tokens(self):
        return self.num_tokens - sum(self.prompt_lengths)

    @property
    def response_masks(self):
        """Boolean [L] for each sequence: which of its tokens belong to the response."""
        return [
            torch.arange(len(sequence)) >= start
            for sequence, start in zip(self.sequences, self.prompt_lengths, strict=True)
        ]

    def tree(self, device="cpu"):
        return regrow.PrefixTree.from_sequences(self.sequences).to(device)

    def objective(self, device="cpu"):
        """GRPO, the mean over all response tokens: one that several sequences share counts once for each of them."""
        old = self.old_logp
        if old is not None:  # the engine's objectives take an entry for every token; those of prompts are not read
            old = [
                torch.cat([logp.new_zeros(start), logp]).to(device)
                for logp, start in zip(old, self.prompt_lengths, strict=True)
            ]
        masks = [mask.to(device) for mask in self.response_masks]
        return GRPO(masks, self.advantages, old_logprobs=old, aggregation="token-mean")


def make_batch(groups):
    """Builds the batch of one update from sampled groups (`rollout.Group`)."""
    rows = [(index, group.prompt, response) for index, group in enumerate(groups) for response in group.responses]
    rewards = torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float64)
    return Batch(
        sequences=[torch.tensor(prompt + response) for _, prompt, response in rows],
        prompt_lengths=[len(prompt) for _, prompt, _ in rows],
        advantages=group_advantages(rewards, [index for index, _, _ in rows]).tolist(),
    )
