"""GRPO's objective as a weight for every token of every sequence."""

from dataclasses import dataclass

import torch

CLIP = 0.2


@dataclass(frozen=True)
class Batch:
    """The data of one update, the same for both ways to compute it.

    sequences: prompt + response, int64 [L]; prompt_lengths: where each response starts; token_weights: fp64 [L], the
    sequence's advantage over the number of all response tokens on its response, 0 on its prompt; old_logp: the response
    tokens' log-probs under the policy that sampled them, [L - prompt length], or None: under the policy as it is.
    """

    sequences: list[torch.Tensor]
    prompt_lengths: list[int]
    token_weights: list[torch.Tensor]
    old_logp: list[torch.Tensor] | None = None

    @property
    def num_tokens(self):
        return sum(len(sequence) for sequence in self.sequences)


def group_advantages(rewards, floor=1e-4):
    """Rewards of one group less their mean, over their standard deviation (DeepSeekMath, section 4.1.1)."""
    rewards = torch.tensor(rewards, dtype=torch.float64)
    return (rewards - rewards.mean()) / (rewards.std() + floor)


def make_batch(groups):
    """Builds the batch of one update from sampled groups (`rollout.Group`)."""
    rows = [
        (group.prompt, response, float(advantage))
        for group in groups
        for response, advantage in zip(group.responses, group_advantages(group.rewards), strict=True)
    ]
    num_response_tokens = sum(len(response) for _, response, _ in rows)
    weights = []
    for prompt, response, advantage in rows:
        weight = torch.zeros(len(prompt) + len(response), dtype=torch.float64)
        weight[len(prompt) :] = advantage / num_response_tokens
        weights.append(weight)
    return Batch(
        sequences=[torch.tensor(prompt + response) for prompt, response, _ in rows],
        prompt_lengths=[len(prompt) for prompt, _, _ in rows],
        token_weights=weights,
    )


def grpo_loss(logp, token_weights, old_logp=None):
    """GRPO's clipped surrogate (DeepSeekMath, eq. 3, without the KL term) -> scalar.

    logp, token_weights, old_logp: of one shape, an entry for each token. Without `old_logp` the samples are from the
    policy itself: the ratio is 1, so clipping never binds.
    """
    weights = token_weights.to(logp)
    ratio = torch.exp(logp - (logp.detach() if old_logp is None else old_logp.to(logp)))
    return -torch.minimum(ratio * weights, ratio.clamp(1 - CLIP, 1 + CLIP) * weights).sum()
