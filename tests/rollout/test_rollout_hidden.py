"""Hidden states: beside each token the state from which it was drawn, in the result and for drafters."""

import pytest
import torch

import regrow.models
from guesses import Guesses
from lifted_casts import LiftedCasts
from model_families import make_model, relative_l2
from regrow.rollout import Strategy, generate
from tiny_policy import WIDTH, TinyPolicy

VOCABULARY, NEW = 11, 10
# A shared beginning, one the beginning of another, one of one token.
PROMPTS = [[1, 2, 3, 4], [1, 2, 3], [7], [1, 2, 5, 6, 7]]


def drafted(rollout, vocabulary):
    right = [sequence.tolist() for sequence in rollout.sequences]
    return dict(drafter=Guesses(right, 0, vocabulary), strategy=Strategy(3, 2, 6), max_batch=3)


def assert_states_of_parents(hidden, tree, states):
    """states [T,H]: of each token of the tree."""
    roots = tree.parent_index < 0
    assert hidden.shape == states.shape and not hidden[roots].any()
    assert relative_l2(hidden[~roots], states[tree.parent_index[~roots]]) < 1e-12


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt-oss"])
@torch.no_grad()
def test_states_on_the_tree_are_those_of_the_packed_model(family):
    model = regrow.models.attach(make_model(family))
    options = dict(max_new_tokens=NEW, seed=1, return_hidden=True)
    with LiftedCasts():
        plain = generate(model, PROMPTS, 3, **options)
        trees = generate(model, PROMPTS, 3, **options, **drafted(plain, 64))
        states = regrow.models.packed(model.model, plain.tree).last_hidden_state[0]
    assert trees.stats.accepted > 0
    for rollout in (plain, trees):
        assert_states_of_parents(rollout.hidden, rollout.tree, states)


def test_without_asking_there_are_none():
    assert generate(TinyPolicy(VOCABULARY), PROMPTS, max_new_tokens=2).hidden is None


def test_an_interrupted_rollout_has_those_of_what_is_finished():
    policy = TinyPolicy(VOCABULARY)

    def on_event(event):
        if getattr(event, "reason", None) and event.sequence == 3:
            raise KeyboardInterrupt

    rollout = generate(
        policy, PROMPTS, 2, max_new_tokens=NEW, seed=0, max_batch=3, return_hidden=True, on_event=on_event
    )
    assert 0 < len(rollout.sequences) < 8
    for path, text in zip(rollout.paths(), rollout.sequences, strict=True):
        torch.testing.assert_close(rollout.hidden[path[1:]], policy.states_alone(text.tolist())[:-1])


class Listener(Guesses):
    """Keeps all rows it is given, and compares those of states."""

    wants_hidden = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rows, self.tokens_of, self.proposals = {}, {}, 0

    def begin(self, sequence, prompt, hidden=None):
        assert hidden.shape == (len(prompt) - 1, WIDTH)
        self.rows[sequence], self.tokens_of[sequence] = [hidden], list(prompt)

    def observe(self, sequence, tokens, hidden=None):
        assert hidden.shape == (len(tokens), WIDTH)
        self.rows[sequence].append(hidden)
        self.tokens_of[sequence] += tokens

    def propose(self, state):
        assert state.tokens == self.tokens_of[state.sequence]
        assert state.hidden.equal(self.rows[state.sequence][-1][-1])
        self.proposals += 1
        return super().propose(state)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("stop", [None, [4]])
def test_drafters_see_the_state_beside_each_token(keep, stop):
    policy = TinyPolicy(VOCABULARY, windows=(None, 3))
    options = dict(max_new_tokens=NEW, seed=0, stop=stop)
    right = [sequence.tolist() for sequence in generate(policy, PROMPTS, 2, **options).sequences]
    listener = Listener(right, 0, VOCABULARY)
    rollout = generate(
        policy, PROMPTS, 2, **options, drafter=listener, strategy=Strategy(3, 2, 6), max_batch=3, return_hidden=keep
    )
    assert listener.proposals > 10 and rollout.stats.accepted > 5 and (rollout.hidden is not None) == keep
    for number, text in enumerate(right):
        assert listener.tokens_of[number] == rollout.sequences[number].tolist() == text
        rows = torch.cat(listener.rows[number])
        torch.testing.assert_close(rows, policy.states_alone(text)[:-1], rtol=0, atol=1e-12)
        if keep:
            torch.testing.assert_close(rollout.hidden[rollout.paths()[number][1:]], rows, rtol=0, atol=1e-12)


def test_drafters_that_do_not_want_them_get_none():
    class Deaf(Listener):
        wants_hidden = False

        def begin(self, sequence, prompt, hidden=None):
            assert hidden is None

        observe = begin

        def propose(self, state):
            assert state.hidden is None
            return Guesses.propose(self, state)

    generate(
        TinyPolicy(VOCABULARY), PROMPTS, max_new_tokens=4, drafter=Deaf([[0] * 9] * 4, 0, VOCABULARY),
        strategy=Strategy(2), return_hidden=True,
    )  # fmt: skip
