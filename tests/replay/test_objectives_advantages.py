"""Advantages of groups, by hand."""

import pytest
import torch

from regrow.replay.objectives import group_advantages


def test_group_advantages_by_hand():
    rewards = torch.tensor([1.0, 3.0, 5.0, 0.0, 0.0, 6.0], dtype=torch.float64)
    expected = [-2, 0, 2, -2, -2, 4]
    assert group_advantages(rewards, 3, normalise_by_std=False).tolist() == expected
    std = [2.0] * 3 + [12**0.5] * 3
    actual = group_advantages(rewards, 3, floor=0)
    assert actual.tolist() == pytest.approx([a / s for a, s in zip(expected, std, strict=True)], rel=1e-14)
    actual = group_advantages(rewards, 3, floor=0.5)
    assert actual.tolist() == pytest.approx([a / (s + 0.5) for a, s in zip(expected, std, strict=True)], rel=1e-14)
    shuffled = torch.tensor([3, 0, 5, 1, 4, 2])
    by_id = group_advantages(rewards[shuffled], torch.tensor([0, 0, 0, 2, 2, 2])[shuffled])
    torch.testing.assert_close(by_id, group_advantages(rewards, 3)[shuffled], rtol=1e-14, atol=0)


def test_group_advantages_without_a_difference():
    # The sum of six 0.1, divided by 6, is not 0.1 in floating point.
    rewards = torch.full([6], 0.1, dtype=torch.float64)
    assert group_advantages(rewards, 6, floor=0).tolist() == [0] * 6
    assert group_advantages([7.0, 1.0], 1).tolist() == [0, 0]
    assert group_advantages(torch.tensor([1, 0]), 2).dtype == torch.float32
    assert group_advantages(torch.tensor([1.0, 0.0]).half(), 2).dtype == torch.float16


@pytest.mark.parametrize(
    "rewards, groups, message",
    [
        ([[1.0]], 1, r"rewards has shape \(1, 1\): give one number per sequence"),
        ([1.0, float("nan")], 1, r"rewards is nan for sequence 1: give finite numbers"),
        ([1.0, 2.0, 3.0], 2, r"groups is 2, there are 3 rewards: give a size that divides them, or each sequence's"),
        ([1.0, 2.0], 0, r"groups is 0"),
        ([1.0, 2.0], [0], r"groups has 1 entries, there are 2 rewards: give one for each"),
        ([1.0, 2.0], [0, -1], r"groups has -1"),
    ],
)
def test_group_advantages_refuses(rewards, groups, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, groups)
