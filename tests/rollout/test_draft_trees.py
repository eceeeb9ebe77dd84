"""What `verify` accepts where no statistics are needed, and what it refuses."""

import doctest

import pytest
import torch

from regrow.rollout import verify as module
from regrow.rollout.drafters import Draft
from regrow.rollout.verify import Residual, Verified, verify

BELOW_ONE = 1 - 2**-53


def numbers(rows, draws, value=0.0):
    return torch.full((rows, draws), value, dtype=torch.float64)


def test_an_empty_draft_draws_as_without_speculation():
    target = torch.tensor([[0.25, 0.25, 0.5]]).expand(3, -1)
    column = torch.tensor([[0.1], [0.3], [0.9]], dtype=torch.float64)
    assert verify([Draft()] * 3, target, column) == [Verified([], token) for token in range(3)]


@pytest.mark.parametrize("vocabulary", [3, 600])
def test_no_drafts(vocabulary):
    assert verify([], torch.ones(0, vocabulary), numbers(0, 1)) == []


@pytest.mark.parametrize("number", [0.0, 0.5, BELOW_ONE])
@pytest.mark.parametrize("distributions", [None, {-1: torch.tensor([0.2, 0.7, 0.1])}], ids=["chosen", "drawn"])
def test_greedy_follows_the_target(distributions, number):
    # 2 -> 1 -> 2 is the target's path; the uniforms do not matter.
    draft = Draft([-1, -1, 1, 1, -1], [1, 2, 0, 1, 0], None, distributions)
    greedy = torch.eye(3)[[2, 0, 1, 0, 2, 0]]
    assert verify([draft], greedy, numbers(6, 4, number)) == [Verified([1, 3], 2)]


def test_drafts_of_a_batch_do_not_meet(generator):
    chosen = Draft([-1, 0, 0], [1, 2, 3])
    drawn = Draft([-1, -1, 1], [1, 0, 2], None, {node: torch.rand(4, generator=generator) for node in (-1, 1)})
    mixed = Draft([-1, 0, 0, -1], [3, 2, 1, 0], None, {0: torch.rand(4, generator=generator)})
    drafts = [chosen, drawn, Draft(), mixed, drawn, chosen] * 8
    sizes = [1 + len(draft) for draft in drafts]
    target = torch.rand(sum(sizes), 4, generator=generator)
    uniforms = torch.rand(sum(sizes), 3, generator=generator, dtype=torch.float64)
    alone = [
        verify([draft], *rows)[0]
        for draft, *rows in zip(drafts, target.split(sizes), uniforms.split(sizes), strict=True)
    ]
    assert verify(drafts, target, uniforms) == alone
    assert len({tuple(kept.path) for kept in alone}) > 4


def test_a_node_with_a_distribution_by_hand():
    target, distribution = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.2, 0, 0.3], [0.1, 0.8, 0, 0.1]))
    # Child 0, of token 1, is accepted with 0.2 / 0.8. Else [2/3, 0, 0, 1/3] is left of the target and [1/2, 0, 0, 1/2]
    # of the draft, and so child 1, of token 0, is always accepted.
    draft = Draft([-1, -1], [1, 0], None, {-1: distribution})
    for first, second, path in ((0.24, 0.9, [0]), (0.26, 0.9, [1]), (0.26, BELOW_ONE, [1])):
        uniforms = torch.tensor([[0.99, first, second]], dtype=torch.float64).expand(3, -1)
        assert verify([draft], target.expand(3, -1), uniforms)[0].path == path
    # Without child 1, column 0 draws from what is left.
    draft = Draft.chain([1], None, {-1: distribution})
    for number, token in ((0.66, 0), (0.67, 3)):
        uniforms = torch.tensor([[number, 0.26]], dtype=torch.float64).expand(2, -1)
        assert verify([draft], target.expand(2, -1), uniforms) == [Verified([], token)]


def test_a_draft_equal_to_the_target_is_always_accepted():
    target = torch.tensor([0.1, 0.2, 0.7])
    draft = Draft.chain([0, 1, 2], None, {node: target * 3 for node in (-1, 0, 1)})  # weights, whatever their sum
    assert verify([draft], target.expand(4, -1), numbers(4, 2, 1 - 2**-24))[0].path == [0, 1, 2]


def test_where_the_residual_vanishes():
    # They differ by a rounding at the drafted token alone, so the target is all that is left to draw from.
    target = torch.tensor([0.5, 0.5], dtype=torch.float64)
    residual = Residual(target, target)
    residual.reject(1)
    assert residual.target.tolist() == [0.5, 0.5] and residual.draft.tolist() == [0.5, 0]


def test_tiny_and_huge_weights():
    target, draft = (torch.tensor(row, dtype=torch.float64) for row in ([1e-300, 1e300], [1e300, 1e-300]))
    residual = Residual(target, draft)
    assert residual.acceptance(0) == 0 and residual.acceptance(1) == 1
    residual.reject(0)
    assert residual.target.tolist() == [0, 1] and residual.acceptance(1) == 1


def test_arguments_stay_as_they_are(generator):
    target, row = torch.rand(4, 6, generator=generator), torch.rand(6, generator=generator)
    draft, before = Draft([-1, -1, 1], [1, 2, 3], None, {-1: row}), (target.clone(), row.clone())
    target.requires_grad_()
    for number in (0.0, 0.5, 0.999):
        verify([draft], target, numbers(4, 3, number))
    assert target.equal(before[0]) and row.equal(before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_may_differ(dtype):
    draft = Draft.chain([1], None, {-1: torch.tensor([0.25, 0.75], dtype=dtype)})
    uniforms = torch.tensor([[0.5, 0.9], [0.75, 0.0]], dtype=torch.float64)
    target = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert verify([draft] * 2, target.repeat(2, 1), uniforms.repeat(2, 1)) == [Verified([], 0)] * 2


CHAIN = Draft.chain([2])
DRAWN = Draft.chain([2], None, {-1: torch.ones(4) / 4})


def with_distribution(row, tokens=(2,), node=-1):
    return Draft([-1] * len(tokens), tokens, None, {node: torch.tensor(row)})


ONES, ZEROS = torch.ones(2, 4), numbers(2, 2)


@pytest.mark.parametrize(
    ("draft", "target", "uniforms", "message"),
    [
        (CHAIN, torch.ones(3, 4), ZEROS, r"probabilities are \[3, 4\], must be \[2, V\]: for each draft a row for the"),
        (CHAIN, torch.ones(2), ZEROS, r"probabilities are \[2\], must be"),
        (CHAIN, torch.ones(2, 0), ZEROS, r"probabilities are \[2, 0\], must be"),
        (CHAIN, ONES, numbers(2, 0), r"uniforms are \[2, 0\], must be \[2, 1\] or wider: a row for each"),
        (CHAIN, ONES, numbers(1, 1), r"uniforms are \[1, 1\], must be \[2, 1\]"),
        (DRAWN, ONES, numbers(2, 1), r"uniforms are \[2, 1\], must be \[2, 2\] or wider: .* `Draft.draws` says"),
        (CHAIN, ONES, numbers(2, 1, 1.0), r"a uniform is 1.0, must be in \[0, 1\)"),
        (DRAWN, ONES, torch.tensor([[0, -0.5], [0, 0]]), r"a uniform is -0.5, must be in \[0, 1\)"),
        (DRAWN, ONES, numbers(2, 2, float("nan")), "a uniform is nan"),
        (CHAIN, torch.ones(2, 2), ZEROS, "node 0 of draft 0 is token 2, the target's vocabulary has 2: draft with"),
        (Draft.chain([-1]), ONES, ZEROS, "node 0 of draft 0 is token -1"),
        (CHAIN, torch.eye(4)[:2] * 0, ZEROS, "row of node -1 of draft 0 is from 0.0 to 0.0, must be .* not all 0"),
        (CHAIN, torch.tensor([[1.0] * 3, [-1.0, 1, 1]]), ZEROS, "row of node 0 of draft 0 is from -1.0 to 1.0"),
        (CHAIN, torch.tensor([[1.0] * 3, [1.0, 1, torch.inf]]), ZEROS, "is from 1.0 to inf, must be finite"),
        (CHAIN, torch.tensor([[1.0, 1, torch.nan], [1.0] * 3]), ZEROS, "is from nan to nan"),
        (with_distribution([1.0] * 5), ONES, ZEROS, r"at node -1 of draft 0 is \[5\], must be \[4\]: spread it"),
        (
            with_distribution([1.0] * 4, node=1),
            ONES,
            ZEROS,
            "draft 0 has a distribution at node 1, its nodes",
        ),
        (
            with_distribution([-1.0, 0, 1, 1]),
            ONES,
            ZEROS,
            "distribution has a minimum of -1.0 and a sum of 1.0",
        ),
        (with_distribution([0.0] * 4), ONES, ZEROS, "a minimum of 0.0 and a sum of 0.0, must be positive"),
        (with_distribution([1, 1, 1, torch.inf]), ONES, ZEROS, "a sum of inf, must be positive and finite"),
        (with_distribution([1, 1, 1, torch.nan]), ONES, ZEROS, "a minimum of nan"),
        (with_distribution([1.0, 0, 0, 0]), ONES, ZEROS, "token 2 was drafted, but the distribution, .* gives it 0"),
        (
            with_distribution([0.0, 0, 1, 0], tokens=[2, 1]),
            torch.ones(3, 4),
            numbers(3, 3, 0.9),
            "token 1 was drafted, but the distribution, less its siblings, gives it 0",
        ),
    ],
)
def test_verify_refuses(draft, target, uniforms, message):
    with pytest.raises(ValueError, match=message):
        verify([draft], target, uniforms)


def test_messages_name_the_draft():
    target = torch.ones(5, 4)
    target[3] = 0
    with pytest.raises(ValueError, match="row of node 0 of draft 2 is from 0"):
        verify([Draft(), Draft(), Draft.chain([1, 2])], target, numbers(5, 1))
    with pytest.raises(ValueError, match="node 1 of draft 2 is token 9"):
        verify([Draft(), Draft(), Draft.chain([1, 9])], target, numbers(5, 1))


def test_examples():
    assert doctest.testmod(module).failed == 0
