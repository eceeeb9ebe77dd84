"""What a draft may be, what is left if nodes are left out, and that a layer with hidden states fits the protocol."""

import doctest

import pytest
import torch

from regrow.rollout import drafters as module
from regrow.rollout.drafters import Draft, Drafter, DraftState, check_draft

STATE = DraftState("a", [1, 2], max_tokens=4, depth=2, width=2)
EVEN = torch.full((8,), 1 / 8)


def test_a_tree_in_preorder_passes():
    draft = Draft([-1, 0, 0, -1], [5, 6, 7, 6], [0.5, 0.25, 0.25, 0.5], {-1: EVEN, 0: EVEN})
    assert check_draft(draft, STATE, 8) is draft
    assert [draft.path(node) for node in range(4)] == [[5], [5, 6], [5, 7], [6]]
    assert draft.expected_accepted == 1.5


def test_a_chain_and_no_draft_pass():
    chain = Draft.chain([5, 6])
    assert list(chain.parents) == [-1, 0] and chain.expected_accepted is None
    check_draft(chain, STATE, 8)
    assert len(check_draft(Draft(), STATE, 8)) == 0


@pytest.mark.parametrize(
    "draft, message",
    [
        (None, "a draft is a NoneType: give a Draft, an empty one not to speculate"),
        (Draft([-1], [5, 6]), "the draft has 2 tokens and 1 parents: give each token its parent"),
        (Draft([-1, 0, 0, -1, 3], [1, 2, 3, 4, 5]), "the draft has 5 tokens, max_tokens is 4: leave out"),
        (Draft([-1], [8]), "node 0 has token 8, the vocabulary 8 tokens: use a drafter of the model's"),
        (Draft([-1], [-1]), "node 0 has token -1, the vocabulary"),
        (Draft([1, -1], [5, 6]), "node 0 has parent 1: list the tree in preorder"),
        (Draft([-1, 1], [5, 6]), "node 1 has parent 1: list the tree in preorder"),
        (Draft([-1, -1, 0], [5, 6, 7]), "node 2 has parent 0: list the tree in preorder, .* node 1 or above it"),
        (Draft([-1, -2], [5, 6]), "node 1 has parent -2: list"),
        (Draft.chain([5, 6, 7]), "node 2 is at depth 3, the depth asked for is 2: end the path there"),
        (Draft([-1, 0, -1], [5, 6, 5]), "node 2 is token 5, as a sibling below node -1 is: draw without"),
        (Draft([-1, -1, -1], [5, 6, 7]), "node -1 has more than 2 children, the width asked for: keep"),
        (Draft.chain([5, 6], [0.5]), "the draft has 2 tokens and 1 scores: score each, or none"),
        (Draft.chain([5, 6], [0.5, 0.6]), "node 1 has score 0.6 below 0.5: give the probability"),
        (Draft.chain([5], [float("nan")]), "node 0 has score nan below 1: give the probability"),
        (
            Draft.chain([5, 6], None, {-1: EVEN}),
            r"distributions at nodes \[-1\], children below nodes \[-1, 0\]: give one",
        ),
        (Draft.chain([5], None, {-1: EVEN[:7]}), r"at node -1 has shape \(7,\): give \[8\] probabilities"),
        (
            Draft.chain([5], None, {-1: EVEN * 2}),
            "at node -1 sums to 2, its least is 0.25: give probabilities, not logits",
        ),
        (Draft.chain([5], None, {-1: EVEN * float("nan")}), "at node -1 sums to nan"),
        (
            Draft.chain([5], None, {-1: torch.eye(8)[4]}),
            "node 0 is token 5, to which the distribution at node -1 gives 0",
        ),
    ],
)
def test_messages_of_the_check(draft, message):
    with pytest.raises(ValueError, match=message):
        check_draft(draft, STATE, 8)


def test_children_depths_and_draws():
    tree = Draft([-1, 0, 0, -1, 3], [5, 6, 7, 6, 1])
    assert tree.children == {-1: [0, 3], 0: [1, 2], 1: [], 2: [], 3: [4], 4: []}
    assert tree.depths == [1, 2, 2, 1, 2] and tree.draws == 1
    assert Draft(tree.parents, tree.tokens, None, {3: EVEN}).draws == 2
    assert Draft(tree.parents, tree.tokens, None, {-1: EVEN, 3: EVEN}).draws == 3
    assert Draft().children == {-1: []} and Draft().depths == [] and Draft().draws == 1
    assert Draft(distributions={}).draws == 1


TREE = Draft([-1, 0, 0, -1, 3], [5, 6, 7, 6, 1], [0.5, 0.25, 0.2, 0.5, 0.1])


def test_keeping_some_nodes():
    assert TREE.keep([0, 2, 3]) == Draft([-1, 0, -1], [5, 7, 6], [0.5, 0.2, 0.5])
    assert TREE.keep([3, 4]) == Draft([-1, 0], [6, 1], [0.5, 0.1])
    assert TREE.keep(range(5)) == TREE
    assert TREE.keep([]) == Draft([], [], []) and Draft().keep([]) == Draft([], [])


def test_keeping_some_of_what_was_drawn():
    rows = {node: EVEN.roll(node) for node in (-1, 0, 3)}
    drawn = Draft(TREE.parents, TREE.tokens, TREE.scores, rows)
    kept = drawn.keep([0, 3, 4])
    assert (kept.parents, kept.tokens, kept.scores) == ([-1, -1, 1], [5, 6, 1], [0.5, 0.5, 0.1])
    assert set(kept.distributions) == {-1, 1}
    assert kept.distributions[-1] is rows[-1] and kept.distributions[1] is rows[3]
    assert check_draft(kept, STATE, 8) is kept and drawn.keep([]).distributions == {}
    with pytest.raises(ValueError, match="node 2 is kept, its sibling 1 is not, and they were drawn in this order"):
        drawn.keep([0, 2])
    with pytest.raises(ValueError, match="node 3 is kept, its sibling 0 is not"):
        drawn.keep([3])
    # Those below a node without a distribution were chosen, so any of them may go.
    assert Draft(TREE.parents, TREE.tokens, None, {-1: EVEN}).keep([0, 2]).tokens == [5, 7]


@pytest.mark.parametrize(
    "nodes, message",
    [
        ([1], "node 1 is kept, its parent 0 is not: keep the path to each node"),
        ([0, 4], "node 4 is kept, its parent 3 is not"),
        ([3, 0], r"nodes are \[3, 0\], the draft has 5: give some of them, each once, sorted"),
        ([0, 0], r"nodes are \[0, 0\]"),
        ([-1, 0], r"nodes are \[-1, 0\]"),
        ([0, 5], r"nodes are \[0, 5\]"),
    ],
)
def test_nodes_that_are_no_draft(nodes, message):
    with pytest.raises(ValueError, match=message):
        TREE.keep(nodes)


def test_examples():
    assert doctest.testmod(module).failed == 0


class PairedDrafter(Drafter):
    """Has the interface of a layer over pairs (token t+1, hidden t); stores them, and drafts all sequences at once."""

    vocabulary = 8
    wants_hidden = True

    def __init__(self):
        self.pairs, self.batches = {}, []

    def begin(self, sequence, prompt, hidden=None):
        self.pairs[sequence] = list(zip(prompt[1:], hidden.tolist(), strict=True))

    def observe(self, sequence, tokens, hidden=None):
        self.pairs[sequence] += zip(tokens, hidden.tolist(), strict=True)

    def propose(self, state):
        return self.propose_batch([state])[0]

    def propose_batch(self, states):
        self.batches.append([state.sequence for state in states])
        hidden = torch.stack([state.hidden for state in states])  # one forward for all
        return [Draft.chain([int(row[0]) % self.vocabulary]) for row in hidden]


def test_a_layer_over_tokens_and_hidden_states_fits():
    drafter = PairedDrafter()
    hidden = torch.arange(4.0)[:, None] * 10  # the model's, of tokens 0 to 3
    drafter.begin("a", [1, 2, 3], hidden[:2])
    drafter.observe("a", [4, 5], hidden[2:])  # drawn from the states of token 2, and of token 3
    assert drafter.pairs["a"] == [(2, [0.0]), (3, [10.0]), (4, [20.0]), (5, [30.0])]
    state = DraftState("a", [1, 2, 3, 4, 5], 1, 1, hidden=hidden[-1])
    assert [draft.tokens for draft in drafter.propose_batch([state, state])] == [[6], [6]]
    assert drafter.batches == [["a", "a"]]


def test_a_batch_is_a_loop_by_default():
    class Last(Drafter):
        def propose(self, state):
            return Draft.chain([state.tokens[-1]])

        def observe(self, sequence, tokens, hidden=None):
            pass

    drafter = Last()
    drafter.begin("a", [1])
    assert [draft.tokens for draft in drafter.propose_batch([STATE, STATE])] == [[2], [2]]
    drafter.finish("a")
