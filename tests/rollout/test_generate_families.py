"""Rollouts of every family in fp64 are those of each sequence alone under eager attention."""

import pytest
import torch

import regrow.models
import regrow.replay
from guesses import Guesses
from lifted_casts import LiftedCasts
from model_families import FAMILIES, make_model, relative_l2
from regrow.rollout import Strategy, generate

# Equal prompts, shared beginnings, one the beginning of another, one of one token.
PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 4, 5], [1, 2, 3], [30], [1, 2, 3, 9, 10, 11]]
NEW = 9


def greedy_alone(model, prompt):
    """The likeliest continuation, all of it computed anew for each token."""
    tokens = list(prompt)
    for _ in range(NEW):
        with LiftedCasts():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens


def logprobs_alone(model, sequence, prompt_length):
    with LiftedCasts():
        logits = model(input_ids=sequence[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, sequence[1:, None])[prompt_length - 1 :, 0]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_greedy_is_greedy_alone(family):
    expected = [greedy_alone(make_model(family), prompt) for prompt in PROMPTS]
    model = regrow.models.attach(make_model(family))
    ways = {
        "plain": {},
        "two at once": dict(max_batch=2),
        "trees": dict(drafter=Guesses(expected, 0), strategy=Strategy(3, 2, 6)),
        "chains, three at once": dict(drafter=Guesses(expected, 1), strategy=Strategy(4, 1), max_batch=3),
    }
    for way, options in ways.items():
        with LiftedCasts():
            rollout = generate(model, PROMPTS, max_new_tokens=NEW, temperature=0, **options)
        assert [sequence.tolist() for sequence in rollout.sequences] == expected, way
        if "drafter" in options:
            assert 0 < rollout.stats.accepted < rollout.stats.drafted


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_sampled_sequences_and_their_log_probs(family):
    plain, model = make_model(family), regrow.models.attach(make_model(family))
    with LiftedCasts():
        rollout = generate(model, PROMPTS, 2, max_new_tokens=NEW, seed=5, temperature=1.5)
        fewer = generate(model, PROMPTS, 2, max_new_tokens=NEW, seed=5, temperature=1.5, max_batch=3)
        drafted = generate(
            model, PROMPTS, 2, max_new_tokens=NEW, seed=5, temperature=1.5, drafter="suffix", strategy=Strategy(4, 2)
        )
        replayed = regrow.replay.logprobs(model, rollout.tree, where=rollout.response_mask)
    for other in (fewer, drafted):
        assert [s.tolist() for s in other.sequences] == [s.tolist() for s in rollout.sequences]
    for sequence, length, logprobs in zip(rollout.sequences, rollout.prompt_lengths, rollout.logprobs, strict=True):
        assert len(logprobs) == len(sequence) - length == NEW
        assert relative_l2(logprobs, logprobs_alone(plain, sequence, length)) <= 1e-12
    assert (
        relative_l2(rollout.on_axis(rollout.logprobs)[rollout.response_mask], replayed[rollout.response_mask]) <= 1e-12
    )
