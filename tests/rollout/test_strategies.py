"""Strategies, and the expected tokens of a step against enumeration, simulation and the formula for chains."""

import doctest
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.rollout import strategy as module
from regrow.rollout.strategy import (
    NONE,
    AcceptanceRates,
    ScoreCalibration,
    Strategy,
    best_tree,
    depths_and_ranks,
    expected_tokens,
    expected_tokens_of,
    parse,
    strategies_within,
)

RANKS = st.lists(st.floats(0, 1), min_size=1, max_size=3).map(lambda row: [value / max(1, sum(row)) for value in row])
TABLES = st.one_of(st.floats(0, 1), RANKS, st.lists(RANKS, min_size=1, max_size=3))


def test_what_tokens_defaults_to_and_how_strategies_read():
    assert Strategy(4) == Strategy(4, 1, 4) and Strategy(4, 2).tokens == 8 and Strategy(0, 1, 0) == NONE
    assert list(map(str, (NONE, Strategy(4), Strategy(3, 2)))) == ["none", "chain of 4", "tree of 6, depth 3, width 2"]
    assert parse("none") is NONE and parse(Strategy(4)) == Strategy(4)
    assert Strategy(16, 4, 32).shortened(2) == Strategy(2, 4, 20)
    assert Strategy(3).shortened(9) == Strategy(3) and Strategy(3).shortened(0) is NONE


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((-1,), "depth is -1: give the longest path"),
        ((2, 0), "width is 0: give the most children"),
        ((0, 2), "width is 2 at depth 0: use NONE, or a depth"),
        ((4, 1, 3), "tokens is 3 at depth 4, width 1: give at least 4"),
        ((4, 2, 1), "tokens is 1 at depth 4, width 2: give at least 4"),
        ((4, 1, 5), "tokens is 5 at depth 4, width 1: give at most 4"),
        ((2, 2, 7), "tokens is 7 at depth 2, width 2: give at most 6"),
        ((0, 1, 1), "tokens is 1 at depth 0, width 1: give at most 0"),
    ],
)
def test_messages_of_strategies(arguments, message):
    with pytest.raises(ValueError, match=message):
        Strategy(*arguments)


def test_messages_of_parse_and_acceptance():
    with pytest.raises(ValueError, match=r"strategy is 'chain': give a Strategy, as .*, or \"none\""):
        parse("chain")
    with pytest.raises(ValueError, match="acceptance is empty: give a float"):
        expected_tokens(Strategy(2), [])
    for acceptance in (1.5, [0.6, 0.6], [[0.5], [float("nan")]]):
        with pytest.raises(ValueError, match="give probabilities by rank, whose sum is at most 1"):
            expected_tokens(Strategy(2), acceptance)


@given(st.integers(0, 12), st.floats(0, 1))
def test_chains_are_the_geometric_sum(depth, acceptance):
    expected = sum(acceptance**power for power in range(depth + 1))
    assert expected_tokens(Strategy(depth), acceptance) == pytest.approx(expected)
    assert expected_tokens(Strategy(depth), [acceptance, 0.0]) == pytest.approx(expected)


def subtrees(nodes, tokens):
    """All sets of at most `tokens` nodes with each node's parent: nodes are paths of ranks."""
    for size in range(tokens + 1):
        for chosen in itertools.combinations(nodes, size):
            if all(len(node) == 1 or node[:-1] in chosen for node in chosen):
                yield chosen


@given(TABLES, st.integers(1, 3), st.integers(1, 2), st.integers(3, 5))
def test_the_best_tree_is_the_best_of_all(acceptance, depth, width, tokens):
    nodes = [node for length in range(1, depth + 1) for node in itertools.product(range(width), repeat=length)]
    tokens = max(depth, min(tokens, len(nodes)))
    rows = module._rows(acceptance)

    def probability(node):
        found = 1.0
        for level, rank in enumerate(node):
            row = rows[min(level, len(rows) - 1)]
            found *= row[rank] if rank < len(row) else 0.0
        return found

    most = max(sum(map(probability, chosen)) for chosen in subtrees(nodes, tokens))
    assert expected_tokens(Strategy(depth, width, tokens), acceptance) == pytest.approx(1 + most)


@given(TABLES)
def test_many_at_once_are_each_alone(acceptance):
    strategies = strategies_within(Strategy(4, 2, 8))
    together = expected_tokens_of(strategies, acceptance)
    assert together == pytest.approx([expected_tokens(strategy, acceptance) for strategy in strategies])


@given(TABLES)
def test_trees_stay_within_their_limits(acceptance):
    for strategy in strategies_within(Strategy(4, 4, 12)):
        parents, probabilities = best_tree(strategy, acceptance)
        assert len(parents) <= strategy.tokens and probabilities == sorted(probabilities, reverse=True)
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        places = depths_and_ranks(parents)
        assert all(depth <= strategy.depth and rank < strategy.width for depth, rank in places)


def test_a_simulation_emits_what_is_expected():
    draw, table, strategy = random.Random(0), [[0.5, 0.25], [0.6, 0.2]], Strategy(3, 2, 8)
    parents, _ = best_tree(strategy, table)
    places = depths_and_ranks(parents)
    emitted, steps = 0, 20000
    for _ in range(steps):
        node, depth = -1, 0
        while node is not None:
            emitted, depth = emitted + 1, depth + 1
            rank = draw.choices(range(3), [*table[min(depth, 2) - 1], 1 - sum(table[min(depth, 2) - 1])])[0]
            node = next((i for i, parent in enumerate(parents) if parent == node and places[i][1] == rank), None)
    assert emitted / steps == pytest.approx(expected_tokens(strategy, table), rel=0.02)


def test_strategies_to_search_are_within_the_limit():
    limit = Strategy(6, 4, 16)
    found = strategies_within(limit)
    assert found[0] == NONE and limit in found and Strategy(6) in found and Strategy(4, 2, 8) in found
    assert all(found.depth <= 6 and found.width <= 4 and found.tokens <= 16 for found in found)
    assert strategies_within(NONE) == [NONE] and len(set(found)) == len(found)


def test_rates_approach_what_happens_and_begin_at_the_depth_above():
    rates = AcceptanceRates(3, 2)
    assert rates.table()[0].tolist() == rates.table()[2].tolist() == pytest.approx([0.6, 0.24])
    for step in range(2000):
        rates.observe([-1, 0, -1], [[0, 1], [2], [0], []][step % 4])
    assert rates.table()[:2, 0] == pytest.approx([0.5, 0.5], abs=0.02)
    assert rates.table()[0, 1] == pytest.approx(0.25, abs=0.02)
    assert rates.table()[2, 0] == pytest.approx(0.5, abs=0.02)
    assert rates.scores([-1, 0, -1]) == pytest.approx([0.5, 0.25, 0.25], abs=0.02)


def test_rates_of_siblings_are_probabilities():
    rates = AcceptanceRates(1, 2)
    for _ in range(100):
        rates.observe([-1], [0])
        rates.observe([-1, -1], [1])
    assert (rates.table().sum(axis=1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("score, truth", [(0.95, 0.1), (0.15, 0.8), (0.5, 0.5)])
def test_scores_are_corrected(score, truth):
    draw, calibration = random.Random(0), ScoreCalibration()
    assert calibration.correct([score]) == pytest.approx([score])
    for _ in range(1000):
        calibration.observe([score], [0] if draw.random() < truth else [])
    assert calibration.correct([score])[0] == pytest.approx(truth, abs=0.06)


@given(st.lists(st.floats(0, 1), min_size=1), st.randoms())
def test_corrected_scores_are_probabilities(scores, draw):
    calibration = ScoreCalibration()
    for _ in range(3):
        calibration.observe(scores, [node for node in range(len(scores)) if draw.random() < 0.5])
    corrected = np.array(calibration.correct(scores))
    assert ((corrected >= 0) & (corrected <= 1)).all()


def test_examples():
    assert doctest.testmod(module).failed == 0
