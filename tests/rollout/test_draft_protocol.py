"""What a draft may be, and that a layer with hidden states fits the protocol."""

import pytest
import torch

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
        (Draft([-1], [5, 6]), "the draft has 2 tokens and 1 parents: give each token its parent"),
        (Draft([-1, 0, 0, -1, 3], [1, 2, 3, 4, 5]), "the draft has 5 tokens, max_tokens is 4: leave out"),
        (Draft([-1], [8]), "node 0 has token 8, the vocabulary 8 tokens: use a drafter of the model's"),
        (Draft([-1], [-1]), "node 0 has token -1, the vocabulary"),
        (Draft([1, -1], [5, 6]), "node 0 has parent 1: list the tree in preorder"),
        (Draft([-1, 1], [5, 6]), "node 1 has parent 1: list the tree in preorder"),
        (Draft([-1, -1, 0], [5, 6, 7]), "node 2 has parent 0: list the tree in preorder, .* node 1 or above it"),
        (Draft([-1, -2], [5, 6]), "node 1 has parent -2: list"),
        (Draft.chain([5, 6, 7]), "node 2 is at depth 3, the depth asked for is 2: end the path there"),
        (Draft([-1, 0, -1], [5, 6, 5]), "node 2 is token 5, as a sibling is: list a token once below node -1"),
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
