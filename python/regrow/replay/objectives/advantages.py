"""Advantages of responses to one prompt, from their rewards."""

import torch

from regrow.gather import replay_scatter
from regrow.replay.objectives.inputs import read_indices, read_number


def group_advantages(rewards, groups, *, normalise_by_std=True, floor=1e-4):
    """Each reward less the mean of its group, over the group's standard deviation plus `floor`.

    rewards [num_sequences], of any real dtype; groups: the size of each group, if they follow one another, or each
    sequence's group, int64 [num_sequences] from 0, in any order. The deviation is that of a sample (n - 1); a group of
    one has advantage 0. normalise_by_std=False leaves the division away, as Dr. GRPO does.
    Returns [num_sequences] in the rewards' dtype, fp32 for integers; computed in fp64.
    Raises ValueError for rewards that are no finite vector, a size that does not divide them, and other groups.
    Shao et al., "DeepSeekMath", section 4.1.2.

        advantages = group_advantages(rewards, 8)
        advantages = group_advantages(rewards, prompt_of_sequence, normalise_by_std=False)
    """
    rewards = torch.as_tensor(rewards).detach()
    if rewards.dim() != 1:
        raise ValueError(f"rewards has shape {tuple(rewards.shape)}: give one number per sequence")
    if not rewards.isfinite().all():
        sequence = int((~rewards.isfinite()).nonzero()[0])
        raise ValueError(f"rewards is {rewards[sequence].item()} for sequence {sequence}: give finite numbers")
    floor = read_number("floor", floor, 0)
    groups = _group_of_each(groups, rewards)
    num_groups = int(groups.max()) + 1 if groups.numel() else 0
    counts = torch.bincount(groups, minlength=num_groups)
    wide = rewards.to(torch.float64)

    # Less the group's least reward first: equal rewards then have advantage 0 exactly.
    least = wide.new_zeros(num_groups).scatter_reduce(0, groups, wide, "amin", include_self=False)
    above = wide - least[groups]
    advantages = above - (replay_scatter(above, groups, num_groups) / counts)[groups]
    if normalise_by_std:
        variance = replay_scatter(advantages.square(), groups, num_groups) / (counts - 1).clamp(min=1)
        scale = variance.sqrt()[groups] + floor
        advantages = torch.where(advantages == 0, advantages, advantages / scale)
    return advantages.to(rewards.dtype if rewards.is_floating_point() else torch.float32)


def _group_of_each(groups, rewards):
    """int64 [num_sequences]"""
    if isinstance(groups, int):
        if groups < 1 or rewards.numel() % groups:
            raise ValueError(
                f"groups is {groups}, there are {rewards.numel()} rewards: give a size that divides them, or each "
                "sequence's group"
            )
        return torch.arange(rewards.numel(), device=rewards.device) // groups
    groups = read_indices("groups", groups, max(rewards.numel(), 1), rewards.device)
    if groups.numel() != rewards.numel():
        raise ValueError(f"groups has {groups.numel()} entries, there are {rewards.numel()} rewards: give one for each")
    return groups
