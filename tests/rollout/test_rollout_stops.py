"""Where responses end: runs of tokens, also inside what a draft had accepted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guesses import Guesses
from model_families import make_model
from regrow import models
from regrow.rollout import Drafter, Strategy, generate
from regrow.rollout.drafters import Draft
from regrow.rollout.sequences import Stop
from tiny_policy import TinyPolicy

VOCABULARY, NEW, GROUP = 6, 16, 4
PROMPTS = [[1, 2, 3], [1, 2, 3, 4], [5]]


def naive(response, runs, max_new_tokens):
    """How long the response is, and why it ends there, a token at a time."""
    for length in range(1, len(response) + 1):
        if any(response[:length][-len(run) :] == run for run in runs):
            return length, "stop"
        if length == max_new_tokens:
            return length, "length"
    return len(response), None


TOKENS = st.integers(0, 2)


@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=3),
    st.lists(TOKENS, max_size=12),
    st.lists(st.integers(1, 5)),
    st.integers(1, 9),
)
def test_stops_in_pieces(runs, text, pieces, max_new_tokens):
    expected, reason = naive(text, runs, max_new_tokens)
    stop, response = Stop(runs, max_new_tokens), []
    for size in [*pieces, *[1] * len(text)]:
        if len(response) == len(text):
            break
        new = text[len(response) : len(response) + size]
        count, ended = stop.count(response, new)
        response += new[:count]
        assert count == len(new) or ended
        if ended:
            assert (len(response), ended) == (expected, reason)
            return
    assert (len(response), None) == (expected, reason)


def roll(stop, **options):
    return generate(TinyPolicy(VOCABULARY), PROMPTS, GROUP, max_new_tokens=NEW, seed=2, temperature=2, stop=stop,
                    **options)  # fmt: skip


def responses(rollout):
    return [response.tolist() for response in rollout.responses()]


class Whole(Drafter):
    """Drafts the right continuation, all of it."""

    def __init__(self, sequences):
        self.sequences = sequences

    def observe(self, sequence, tokens, hidden=None):
        pass

    def propose(self, state):
        return Draft.chain(self.sequences[state.sequence][len(state.tokens) :][: state.depth])


@pytest.mark.parametrize(
    "stop",
    [
        [3],  # a token, also the first of a response
        (4, 1),
        [[2, 0]],
        [[1, 1, 1], [5, 0], 2],  # of several lengths
        [[3, 1]],  # [1, 2, 3] + 1: the prompt's last token is no part of a run
        [torch.tensor([2, 2]), range(3, 5)],
        [0, 1, 2, 3, 4, 5],  # at the first token, whatever it is
    ],
)
def test_responses_end_behind_the_first_run(stop):
    free = roll(None)
    runs = [[run] if isinstance(run, int) else [int(token) for token in run] for run in stop]
    expected = [naive(response, runs, NEW) for response in responses(free)]
    whole = [sequence.tolist() for sequence in free.sequences]
    ways = {
        "plain": {},
        "two at once": dict(max_batch=2),
        "all accepted": dict(drafter=Whole(whole), strategy=Strategy(NEW)),
        "trees": dict(drafter=Guesses(whole, 0, VOCABULARY), strategy=Strategy(5, 2, 10), return_hidden=True),
    }
    for way, options in ways.items():
        rollout = roll(stop, **options)
        found = list(zip(map(len, responses(rollout)), rollout.reasons, strict=True))
        assert found == expected, way
        for cut, text, logprobs, sampled, full in zip(
            responses(rollout), responses(free), rollout.logprobs, rollout.sampling_logprobs, free.logprobs, strict=True
        ):
            assert cut == text[: len(cut)] and len(logprobs) == len(sampled) == len(cut)
            torch.testing.assert_close(logprobs, full[: len(cut)], rtol=0, atol=1e-12)
    assert {reason for _, reason in expected} != {"length"}
    assert any(response[0] == 1 for response in responses(free)[:GROUP])


def test_a_whole_draft_is_one_step():
    whole = [sequence.tolist() for sequence in roll(None).sequences]
    stats = roll(None, drafter=Whole(whole), strategy=Strategy(NEW)).stats
    assert stats.steps == 1 and stats.accepted == stats.drafted == len(whole) * (NEW - 2)
    assert stats.acceptance_length == NEW - 1


@pytest.mark.parametrize("ids", [5, [5, 9]])
@pytest.mark.parametrize("place", ["config", "generation_config"])
def test_the_models_own_end(ids, place):
    model = models.attach(make_model("llama"))
    if place == "config":
        model.generation_config = None
    getattr(model, place).eos_token_id = ids
    rollouts = {
        stop: generate(model, [[1, 2]], 12, max_new_tokens=40, seed=0, temperature=3.0, stop=stop)
        for stop in ("eos", None)
    }
    runs = [[token] for token in (ids if isinstance(ids, list) else [ids])]
    expected = [naive(response, runs, 40) for response in responses(rollouts[None])]
    assert list(zip(map(len, responses(rollouts["eos"])), rollouts["eos"].reasons, strict=True)) == expected
    assert set(rollouts["eos"].reasons) == {"stop", "length"} and set(rollouts[None].reasons) == {"length"}
