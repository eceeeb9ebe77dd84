"""What `verify` accepts where no statistics are needed, and the trees and arguments it refuses."""

import doctest

import pytest
import torch

from regrow.rollout import verify as module
from regrow.rollout.verify import DraftTree, Residual, Verified, verify


def test_an_empty_draft_draws_as_without_speculation():
    target = torch.tensor([[0.25, 0.25, 0.5]])
    for number, token in ((0.1, 0), (0.3, 1), (0.9, 2)):
        assert verify(DraftTree([7], [-1]), target, torch.tensor([[number]])) == Verified([], token)


@pytest.mark.parametrize("drafted", [False, True], ids=["chosen", "drawn"])
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_greedy_follows_the_target(drafted, number):
    # 0 -> 2 -> 1 is the target's path; the uniforms do not matter.
    tree = DraftTree([9, 1, 2, 0, 1, 0], [-1, 0, 0, 2, 2, 0], {0: torch.tensor([0.2, 0.7, 0.1])} if drafted else {})
    greedy = torch.eye(3)[[2, 0, 1, 0, 2, 0]]
    uniforms = torch.full(tree.uniforms_shape, number, dtype=torch.float64)
    assert verify(tree, greedy, uniforms) == Verified([2, 4], 2)


def test_a_draft_equal_to_the_target_is_always_accepted():
    target = torch.tensor([[0.1, 0.2, 0.7]]).expand(4, -1)
    tree = DraftTree.chain(0, [0, 1, 2], target[:3] * 3)  # weights, whatever their sum
    assert verify(tree, target, torch.full((4, 2), 1 - 2**-24)).path == [1, 2, 3]


def test_where_the_residual_vanishes():
    # They differ by a rounding at the drafted token alone, so the target is all that is left to draw from.
    target = torch.tensor([0.5, 0.5], dtype=torch.float64)
    residual = Residual(target, target)
    residual.reject(1)
    assert residual.target.tolist() == [0.5, 0.5] and residual.draft.tolist() == [0.5, 0]
    # A one-hot target has no remainder either.
    residual = Residual(torch.tensor([0.0, 1.0]))
    residual.reject(1)
    assert residual.target.tolist() == [0, 1]


def test_arguments_stay_as_they_are(generator):
    target, draft = torch.rand(4, 6, generator=generator), torch.rand(6, generator=generator)
    tree, before = DraftTree([0, 1, 2, 3], [-1, 0, 0, 2], {0: draft}), (target.clone(), draft.clone())
    for number in (0.0, 0.5, 0.999):
        verify(tree, target, torch.full(tree.uniforms_shape, number))
    assert target.equal(before[0]) and draft.equal(before[1])


def test_children_and_shapes():
    tree = DraftTree(torch.tensor([5, 7, 2, 8, 3]), torch.tensor([-1, 0, 1, 0, 0]))
    assert tree.children == [[1, 3, 4], [2], [], [], []] and tree.uniforms_shape == (3, 4)
    assert DraftTree.chain(5, []).uniforms_shape == (1, 1)


@pytest.mark.parametrize(
    ("tokens", "parents", "drafts", "message"),
    [
        ([], [], {}, "0 tokens and 0 parents, must be as many and at least the root"),
        ([1, 2], [-1], {}, "2 tokens and 1 parents"),
        ([1], [0], {}, "node 0 has parent 0, which must be -1: node 0 is the root"),
        ([1, 2], [-1, -1], {}, "node 1 has parent -1, which must be 0 or an ancestor of it: sort in preorder"),
        ([1, 2], [-1, 1], {}, "node 1 has parent 1"),
        ([1, 2, 3, 4], [-1, 0, 0, 1], {}, "node 3 has parent 1, which must be 2 or an ancestor"),
        ([1, 2, 3, 2], [-1, 0, 1, 0], {}, "node 0 has more than one child of token 2: draw without replacement"),
        ([1, 2], [-1, 0], {2: torch.ones(3)}, "draft_probabilities has node 2, the tree has nodes 0 to 1"),
    ],
)
def test_trees_refused(tokens, parents, drafts, message):
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents, drafts)


CHAIN = DraftTree.chain(1, [2])


@pytest.mark.parametrize(
    ("tree", "target", "uniforms", "message"),
    [
        (CHAIN, torch.ones(3, 4), torch.zeros(2, 2), r"target_probabilities are \[3, 4\], must be \[2, V\]"),
        (CHAIN, torch.ones(2, 2), torch.zeros(2, 2), "node 1 is token 2, the target's vocabulary has 2: draft with"),
        (DraftTree.chain(1, [-1]), torch.ones(2, 2), torch.zeros(2, 2), "node 1 is token -1"),
        (CHAIN, torch.ones(2, 4), torch.zeros(2, 1), r"uniforms are \[2, 1\], must be at least \[2, 2\]"),
        (CHAIN, torch.ones(2, 4), torch.zeros(1, 2), r"uniforms are \[1, 2\]"),
        (CHAIN, torch.ones(2, 4), torch.ones(2, 2), r"a uniform is 1.0, must be in \[0, 1\)"),
        (CHAIN, torch.zeros(2, 4), torch.zeros(2, 2), "target probabilities are all 0: leave each row a token"),
        (CHAIN, -torch.ones(2, 4), torch.zeros(2, 2), "target probabilities have a minimum of -1.0 and a sum of -4.0"),
        (CHAIN, torch.full((2, 4), torch.nan), torch.zeros(2, 2), "a minimum of nan"),
        (
            DraftTree.chain(1, [2], torch.ones(1, 5)),
            torch.ones(2, 4),
            torch.zeros(2, 2),
            r"draft_probabilities of node 0 are \[5\], must be \[4\]: spread them",
        ),
        (
            DraftTree.chain(1, [2], torch.tensor([[-1.0, 0, 1, 1]])),
            torch.ones(2, 4),
            torch.zeros(2, 2),
            "draft probabilities have a minimum of -1.0",
        ),
    ],
)
def test_verify_refuses(tree, target, uniforms, message):
    with pytest.raises(ValueError, match=message):
        verify(tree, target, uniforms)


def test_examples():
    assert doctest.testmod(module).failed == 0
