"""A sequence depends on the seed, its number and its prompt alone: not on drafts, nor on what else runs."""

import math
import random

import numpy as np
import pytest
import torch

from guesses import Guesses
from regrow.rollout import NONE, Draft, Drafter, Strategy, cache, generate, sequences
from tiny_policy import TinyPolicy, truncated

VOCABULARY, NEW = 11, 12
PROMPTS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [7], [1, 2, 3, 4], [1, 2, 3, 4, 8, 9, 10]]
SAMPLINGS = [
    dict(temperature=0),
    dict(temperature=0.5),
    dict(),
    dict(temperature=2.0, top_p=0.8),
    dict(temperature=1.3, top_k=3, top_p=0.95),
]


class Noise(Drafter):
    """Random trees, some empty, with scores."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def observe(self, sequence, tokens, hidden=None):
        pass

    def propose(self, state):
        parents, tokens, scores, path = [], [], [], [-1]
        for node in range(self.random.randrange(state.max_tokens + 1)):
            del path[self.random.randint(1, len(path)) :]
            token = self.random.randrange(VOCABULARY)
            siblings = [t for p, t in zip(parents, tokens, strict=True) if p == path[-1]]
            if len(path) > state.depth or len(siblings) == state.width or token in siblings:
                break
            parents.append(path[-1])
            tokens.append(token)
            scores.append((1 if path[-1] < 0 else scores[path[-1]]) * self.random.random())
            path.append(node)
        return Draft(parents, tokens, scores)


def model():
    return TinyPolicy(VOCABULARY, windows=(None, 3))


def texts(rollout):
    return [sequence.tolist() for sequence in rollout.sequences]


def roll(prompts=PROMPTS, group=2, seed=3, **options):
    return generate(model(), prompts, group, max_new_tokens=NEW, seed=seed, **options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_neither_drafts_nor_the_batch_matter(sampling):
    plain = roll(**sampling)
    expected = texts(plain)
    ways = {
        "again": {},
        "one at a time": dict(max_batch=1),
        "three at once": dict(max_batch=3),
        "nothing drafted": dict(drafter="suffix", strategy="none"),
        "none as an object": dict(drafter="suffix", strategy=NONE),
        "suffix": dict(drafter="suffix", strategy=Strategy(4, 2)),
        "noise": dict(drafter=Noise(1), strategy=Strategy(3, 3, 7), max_batch=4),
        "guessed chains": dict(drafter=Guesses(expected, 0, VOCABULARY), strategy=Strategy(4)),
        "guessed trees, two at once": dict(
            drafter=Guesses(expected, 1, VOCABULARY), strategy=Strategy(3, 2, 8), max_batch=2
        ),
    }
    for way, options in ways.items():
        rollout = roll(**sampling, **options)
        assert texts(rollout) == expected, way
        for name in ("logprobs", "sampling_logprobs"):
            pairs = zip(getattr(rollout, name), getattr(plain, name), strict=True)
            assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-12, way
    assert len({tuple(text) for text in expected}) > (1 if sampling.get("temperature") == 0 else 8)


def test_other_prompts_and_siblings_do_not_matter():
    expected = texts(roll())
    assert texts(roll(PROMPTS[:2])) == expected[:4]
    assert texts(roll(PROMPTS[:1], group=5))[:2] == expected[:2]
    assert texts(roll([*PROMPTS, [1], [1, 2, 3, 4, 8]], max_batch=5))[:10] == expected


def test_equal_prompts_get_different_responses():
    rollout = roll(group=3)
    responses = [tuple(response.tolist()) for response in rollout.responses()]
    assert PROMPTS[0] == PROMPTS[3] and len(set(responses)) == len(responses)
    assert [text[: len(prompt)] for text, prompt in zip(texts(rollout)[::3], PROMPTS, strict=True)] == PROMPTS


def test_seeds():
    assert texts(roll(seed=4)) != texts(roll(seed=3))
    assert texts(roll(seed=3 - 2**64)) == texts(roll(seed=3)) == texts(roll(seed=3 + 2**64))
    for kind in (np.int64, np.uint64, torch.tensor):
        assert texts(roll(seed=kind(3))) == texts(roll(seed=3))
    policy = model()  # which seeds torch's generator
    torch.manual_seed(8)
    first, second = (texts(generate(policy, PROMPTS, max_new_tokens=NEW)) for _ in range(2))
    torch.manual_seed(8)
    assert texts(generate(policy, PROMPTS, max_new_tokens=NEW)) == first != second


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_log_probs_of_the_model_and_of_what_is_sampled(sampling):
    rollout, policy = roll(**sampling, drafter=Noise(2), strategy=Strategy(2, 2, 4)), model()
    for number, text in enumerate(texts(rollout)):
        length = rollout.prompt_lengths[number]
        logits = policy.logits_alone(text)[length - 1 : -1]
        for row, token, own, sampled in zip(
            logits, text[length:], rollout.logprobs[number], rollout.sampling_logprobs[number], strict=True
        ):
            assert float(own) == pytest.approx(float(row.log_softmax(-1)[token]), abs=1e-10)
            assert float(sampled) == pytest.approx(math.log(truncated(row, **sampling)[token]), abs=1e-10)
        assert rollout.logprobs[number].dtype == torch.float64


# What is wrong -> a patch; each shows in the tokens or in the log-probs.
WRONG = {
    "an accepted branch is not moved": (cache.Axis, "move", lambda axis, source, target: None),
    "a node sees its siblings": (
        sequences,
        "place_nodes",
        lambda sequence, draft, right=sequences.place_nodes: (lambda p, e, d: (p, e + 1, d))(*right(sequence, draft)),
    ),
    "the mask of a tree stays": (cache.Cache, "accept", lambda *_: None),
    "nodes are one too deep": (
        sequences,
        "place_nodes",
        lambda sequence, draft, right=sequences.place_nodes: (lambda p, e, d: (p, e, d + 1))(*right(sequence, draft)),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_places_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises(AssertionError):
        test_neither_drafts_nor_the_batch_matter(dict())
