"""Drafts without distributions: the tokens are those of decoding without speculation, whatever was drafted."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.rollout import verify as module
from regrow.rollout.drafters import Draft
from regrow.rollout.sampling import Sampling, draw, target_probabilities, uniform
from regrow.rollout.verify import verify
from speculated_text import speculate

LENGTH = 6
SEQUENCES = 3


def random_tree(rng, num_nodes, vocabulary, likely=()):
    """A tree in preorder; half of its tokens are `likely` at their depth."""
    parents, tokens, path, below = [], [], [-1], {}
    for node in range(num_nodes):
        del path[rng.randint(1, len(path)) :]
        depth = len(path) - 1
        token = likely[depth] if depth < len(likely) and rng.random() < 0.5 else rng.randrange(vocabulary)
        if token in below.setdefault(path[-1], set()):
            break  # no siblings of the same token
        below[path[-1]].add(token)
        parents.append(path[-1])
        tokens.append(token)
        path.append(node)
    return Draft(parents, tokens)


class LastToken:
    """A model whose next token depends on the last; -1 stands for none."""

    def __init__(self, vocabulary, sampling, seed):
        logits = torch.randn(vocabulary + 1, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2
        self.rows = target_probabilities(logits, sampling)

    def __call__(self, contexts):
        return self.rows[[context[-1] if context else -1 for context in contexts]]

    def decode(self, seed, sequence, length):
        """Without `verify`, a token at a time."""
        text = []
        for position in range(length):
            text += draw(self([text]), uniform(seed, [sequence], position, draws=1)[:, 0]).tolist()
        return text


SAMPLINGS = [Sampling(0), Sampling(0.4), Sampling(), Sampling(2.0, top_p=0.8), Sampling(top_k=3)]


# A vocabulary within a block of `draw`, and one of several blocks.
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(SAMPLINGS), st.sampled_from([4, 600]))
def test_tokens_are_those_without_drafts(seed, sampling, vocabulary):
    model, rng = LastToken(vocabulary, sampling, seed), random.Random(seed)
    expected = [model.decode(seed, sequence, LENGTH) for sequence in range(SEQUENCES)]

    def propose(sequence, text):
        return random_tree(rng, rng.randrange(9), vocabulary, expected[sequence][len(text) :])

    assert speculate(model, propose, seed, SEQUENCES, LENGTH) == expected


def test_the_path_is_the_longest_that_was_drawn():
    model, rng, depths = LastToken(4, Sampling(), 5), random.Random(5), set()
    for sequence in range(100):
        text = model.decode(7, sequence, 9)
        draft = random_tree(rng, 8, 4, text)
        contexts = [draft.path(node) for node in range(-1, len(draft))]
        (kept,) = verify(
            [draft], model(contexts), uniform(7, sequence, [len(context) for context in contexts], draws=1)
        )
        longest = max((context for context in contexts if context == text[: len(context)]), key=len)
        assert [draft.tokens[node] for node in kept.path] == longest
        assert [draft.parents[node] for node in kept.path] == [-1, *kept.path][:-1]
        assert kept.token == text[len(longest)]
        depths.add(len(longest))
    assert depths >= {0, 1, 2, 3}


# ---- The distribution, exactly: over a grid of numbers each weight, a multiple of its step, is hit as often ----

GRID = 8
FIRST = torch.tensor([1, 0, 4, 3]) / GRID
SECOND = torch.tensor([[2, 2, 2, 2], [8, 0, 0, 0], [0, 1, 6, 1], [5, 0, 0, 3]]) / GRID


@given(st.integers(0, 2**32), st.integers(0, 8))
def test_the_distribution_of_two_tokens(seed, num_nodes):
    draft = random_tree(random.Random(seed), num_nodes, 4)
    contexts = [draft.path(node) for node in range(-1, len(draft))]
    target = torch.stack([SECOND[context[-1]] if context else FIRST for context in contexts])
    grid = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    pairs = torch.cartesian_prod(grid, grid)
    # Row after row: the numbers of the context's length; those of the third token and on do not matter.
    numbers = torch.nn.functional.pad(pairs, (0, len(draft)), value=0.5)[:, [len(context) for context in contexts]]
    verified = verify([draft] * len(pairs), target.repeat(len(pairs), 1), numbers.reshape(-1, 1))

    counts, accepted = torch.zeros(4, 4), torch.zeros(len(draft))
    for kept, pair in zip(verified, pairs, strict=True):
        tokens = [draft.tokens[node] for node in kept.path] + [kept.token]
        if len(tokens) == 1:  # the second is the next step's
            tokens += [verify([Draft()], SECOND[tokens[0]][None], pair[None, 1:])[0].token]
        counts[tokens[0], tokens[1]] += 1
        accepted[kept.path] += 1
    assert counts.equal(FIRST[:, None] * SECOND * len(pairs))
    for node, context in enumerate(contexts[1:]):
        if len(context) <= 2:
            expected = FIRST[context[0]] * (SECOND[context[0], context[1]] if len(context) == 2 else 1)
            assert accepted[node] == expected * len(pairs)


def test_a_child_that_was_not_drawn_is_caught(monkeypatch):
    monkeypatch.setattr(module, "_find", lambda tokens, children, token: next(iter(children), None))
    with pytest.raises(AssertionError):
        test_tokens_are_those_without_drafts.hypothesis.inner_test(0, Sampling(), 4)
    with pytest.raises(AssertionError):
        test_the_distribution_of_two_tokens.hypothesis.inner_test(0, 8)
