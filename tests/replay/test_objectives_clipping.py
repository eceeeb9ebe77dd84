"""Clips, aggregations, KL estimators and penalties, by numbers worked out by hand."""

import math

import pytest
import torch

from regrow import PrefixTree
from regrow.replay.objectives import CISPO, DAPO, DPO, GRPO, GSPO, PPO, SFT, DrGRPO

LOG2 = math.log(2)
# One prompt token, and responses of 3, 1 and 0 tokens.
TREE = PrefixTree.from_sequences([[1, 2, 3, 4], [1, 5], [1]])
MASK = [torch.tensor([False, True, True, True]), torch.tensor([False, True]), torch.tensor([False])]


def ratios(values, advantages, objective=PPO, **options):
    """d loss / d logp at tokens of one response whose ratios to the old policy are `values`."""
    tree = PrefixTree.from_sequences([range(len(values) + 1)])
    logprobs = torch.tensor([0.0, *values], dtype=torch.float64).log().requires_grad_()
    mask = [torch.tensor([False] + [True] * len(values))]
    given = [[0.0, *advantages]] if isinstance(advantages, list) else [advantages]
    loss = objective(mask, given, old_logprobs=[[0.0] * (len(values) + 1)], **options)(logprobs, tree, None)
    return loss.item(), torch.autograd.grad(loss, logprobs)[0][1:].tolist()


# Below, inside and above the interval.
@pytest.mark.parametrize(
    "advantage, value, gradient",
    [
        (2.0, -(0.5 + 1.1 + 1.28) * 2, [-0.5 * 2, -1.1 * 2, 0]),  # a rise is not rewarded above 1.28
        (-2.0, (0.8 + 1.1 + 3.0) * 2, [0, 1.1 * 2, 3.0 * 2]),  # a fall is not rewarded below 0.8
    ],
)
def test_clip(advantage, value, gradient):
    loss, actual = ratios([0.5, 1.1, 3.0], [advantage] * 3, DAPO, aggregation=1)
    assert loss == pytest.approx(value, rel=1e-14)
    assert actual == pytest.approx(gradient, rel=1e-14)
    assert [x == 0 for x in actual] == [x == 0 for x in gradient]


def test_dual_clip():
    loss, gradient = ratios([2.9, 3.1, 3.1], [-2.0, -2.0, 2.0], clip=5e-1, dual_clip=3.0, aggregation=1)
    assert loss == pytest.approx(2.9 * 2 + 3.0 * 2 - 1.5 * 2, rel=1e-14)
    assert gradient == pytest.approx([2.9 * 2, 0, 0], rel=1e-14)


def test_cispo_keeps_every_gradient():
    loss, gradient = ratios([0.5, 1.1, 4.0], [1.0, -1.0, 2.0], CISPO, clip=(0.2, 0.3), aggregation=1)
    assert gradient == pytest.approx([-0.8, 1.1, -1.3 * 2], rel=1e-14)
    assert loss == pytest.approx(-0.8 * math.log(0.5) + 1.1 * math.log(1.1) - 1.3 * 2 * math.log(4), rel=1e-14)


def test_gspo_clips_whole_sequences():
    # The ratio is sqrt(1.21 * 1.0) = 1.1, though one token's is above the clip.
    loss, gradient = ratios([1.21, 1.0], 2.0, GSPO, clip=0.15)
    assert loss == pytest.approx(-1.1 * 2, rel=1e-14)
    assert gradient == pytest.approx([-1.1, -1.1], rel=1e-14)
    for advantage, token_ratios, bound in ((2.0, [1.21, 1.0], 1.05), (-2.0, [0.81, 1.0], 0.95)):
        loss, gradient = ratios(token_ratios, advantage, GSPO, clip=0.05)
        assert loss == pytest.approx(-bound * advantage, rel=1e-14)
        assert gradient == [0, 0]


def test_defaults_of_gspo():
    assert ratios([1.01], 1.0, GSPO)[0] == pytest.approx(-1.0004, rel=1e-14)
    assert ratios([0.99], -1.0, GSPO)[0] == pytest.approx(0.9997, rel=1e-14)


# At ratio 1 exactly the unclipped gradient must be whole, with any clip, 0 too.
@pytest.mark.parametrize("clip", [0.0, 0.2, (1.0, 0.0), (0.0, 10.0)])
@pytest.mark.parametrize("advantage", [2.0, -3.0, 0.0])
@pytest.mark.parametrize("objective", [PPO, GRPO, DAPO, CISPO, GSPO])
def test_on_policy_gradient_is_whole(objective, clip, advantage):
    tree = PrefixTree.from_sequences([[1, 2, 3]])
    logprobs = torch.tensor([0.0, -0.3, -2.0], requires_grad=True)
    mask = [torch.tensor([False, True, True])]
    for old in (None, [logprobs.detach()]):
        loss = objective(mask, [advantage], clip=clip, old_logprobs=old)(logprobs, tree, None)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert gradient.tolist() == [0, -advantage / 2, -advantage / 2]


@pytest.mark.parametrize("objective", [PPO, CISPO, GSPO])
@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_ratios_beyond_the_range_of_the_dtype_are_clipped(objective, advantage):
    tree = PrefixTree.from_sequences([[1, 2]])
    logprobs = torch.tensor([0.0, -1.0], requires_grad=True)
    mask = [torch.tensor([False, True])]
    loss = objective(mask, [advantage], clip=0.2, old_logprobs=[[0.0, -1000.0]])(logprobs, tree, None)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == pytest.approx(-1.2 * advantage * (-1 if objective is CISPO else 1))
    assert gradient.tolist() == pytest.approx([0, -1.2 * advantage if objective is CISPO else 0])


# Losses of the tokens are 1, 2, 3 and 10; the third sequence has none.
@pytest.mark.parametrize(
    "aggregation, expected",
    [("token-mean", 16 / 4), ("sequence-mean", (2 + 10) / 3), ("sequence-sum", 16 / 3), (32, 0.5), (0.5, 32)],
)
def test_aggregation(aggregation, expected):
    logprobs = -torch.tensor([0.0, 1, 2, 3, 10], dtype=torch.float64)
    assert SFT(MASK, aggregation=aggregation)(logprobs, TREE, None).item() == pytest.approx(expected, rel=1e-15)


def test_fixed_length():
    loss = DrGRPO(MASK, [1.0, 1.0, 5.0], length=8)(torch.zeros(5, dtype=torch.float64), TREE, None)
    assert loss.item() == -4 / (3 * 8)
    dense = DrGRPO(torch.cat(MASK), [1.0, 1.0, 5.0], length=8, cu_seqlens=TREE.cu_seqlens)
    assert dense(torch.zeros(5, dtype=torch.float64), TREE, None) == loss


def test_a_sequence_without_response_adds_nothing_and_counts():
    zeros = torch.zeros(5, dtype=torch.float64)
    assert GRPO(MASK, [1.0, 4.0, 100.0])(zeros, TREE, None).item() == pytest.approx(-5 / 3, rel=1e-15)
    assert GSPO(MASK, [1.0, 4.0, 100.0])(zeros, TREE, None).item() == pytest.approx(-5 / 3, rel=1e-15)
    none = [torch.zeros_like(mask) for mask in MASK]
    for objective in (PPO, GRPO, GSPO):
        logprobs = zeros.clone().requires_grad_()
        loss = objective(none, [1.0, 4.0, 100.0])(logprobs, TREE, None)
        assert loss.item() == 0
        assert torch.autograd.grad(loss, logprobs)[0].tolist() == [0] * 5
    loss = DPO(MASK, [[0.0] * 4, [0.0] * 2, [0.0]], chosen=[0], rejected=[2])(zeros, TREE, None)
    assert loss.item() == pytest.approx(LOG2, rel=1e-15)


# The policy has probability 1/2, the reference 1.
@pytest.mark.parametrize(
    "estimator, value, gradient", [("k1", -LOG2, 1.0), ("k2", LOG2**2 / 2, -LOG2), ("k3", 2 - 1 - LOG2, -1.0)]
)
def test_kl_estimators(estimator, value, gradient):
    tree = PrefixTree.from_sequences([[1, 2]])
    logprobs = torch.tensor([0.0, -LOG2], dtype=torch.float64, requires_grad=True)
    objective = PPO(
        [torch.tensor([False, True])], [0.0], reference_logprobs=[[0.0, 0.0]], kl_coefficient=10,
        kl_estimator=estimator,
    )  # fmt: skip
    loss = objective(logprobs, tree, None)
    loss.backward()
    assert loss.item() == pytest.approx(10 * value, rel=1e-14)
    assert logprobs.grad.tolist() == pytest.approx([0, 10 * gradient], rel=1e-14)


def test_k3_of_policies_that_hardly_differ():
    # exp(d) - 1 - d of d = 1e-4 is d^2 / 2 + d^3 / 6: in fp32 the plain formula keeps no digit of it.
    tree = PrefixTree.from_sequences([[1, 2]])
    objective = PPO([torch.tensor([False, True])], [0.0], reference_logprobs=[[0.0, 1e-4]], kl_coefficient=1.0)
    assert objective(torch.zeros(2), tree, None).item() == pytest.approx(5.0e-9, rel=0.01)


def test_entropy_is_rewarded_and_read_only_then():
    zeros = torch.zeros(5, dtype=torch.float64)
    entropy = torch.tensor([9.0, 1, 2, 3, 10], dtype=torch.float64, requires_grad=True)
    loss = GRPO(MASK, [0.0, 0.0, 0.0], entropy_coefficient=0.5)(zeros, TREE, entropy)
    loss.backward()
    assert loss.item() == pytest.approx(-0.5 * (2 + 10) / 3, rel=1e-15)
    assert entropy.grad.tolist() == pytest.approx([0, *[-0.5 / 9] * 3, -0.5 / 3], rel=1e-15)
    for objective in (GRPO, GSPO):
        assert not objective(MASK, [0.0, 0.0, 0.0])(zeros, TREE, entropy).requires_grad


def test_dpo_by_hand():
    tree = PrefixTree.from_sequences([[1, 2], [1, 3]])
    mask = [torch.tensor([False, True])] * 2
    reference = [[0.0, -1.0], [0.0, -2.0]]
    logprobs = torch.tensor([0.0, -0.5, -2.5], dtype=torch.float64, requires_grad=True)
    loss = DPO(mask, reference, chosen=[0], rejected=[1], beta=2.0)(logprobs, tree, None)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-14)
    slope = 2 / (1 + math.exp(2))
    assert logprobs.grad.tolist() == pytest.approx([0, -slope, slope], rel=1e-14)
