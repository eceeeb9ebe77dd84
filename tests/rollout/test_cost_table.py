"""The cost table between its measurements and beyond, what it chooses, and its file."""

import doctest
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.rollout import costs as module
from regrow.rollout.costs import CostTable, UnusableCosts
from regrow.rollout.strategy import NONE, Strategy, expected_tokens, strategies_within

# Milliseconds as a small model takes on two CPU cores; rows per sequence are tokens + 1.
BATCHES, TOKENS = [1, 8, 32], [0, 1, 7]
SECONDS = [[0.018, 0.020, 0.025], [0.029, 0.033, 0.050], [0.055, 0.070, 0.141]]
HERE = {"model": "30 x 576", "dtype": "float32", "device": "cpu", "threads": "2"}
COSTS = CostTable(BATCHES, TOKENS, SECONDS, 256, HERE)


@st.composite
def tables(draw):
    batches = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=4)))
    tokens = [0, *sorted(draw(st.sets(st.integers(1, 32), max_size=4)))]
    times = st.floats(1e-3, 1)
    seconds = draw(st.lists(st.lists(times, min_size=len(tokens), max_size=len(tokens)), min_size=len(batches)))
    return CostTable(batches, tokens, (seconds * len(batches))[: len(batches)], 1, {})


def test_measurements_are_reproduced():
    for size, row in zip(BATCHES, SECONDS, strict=True):
        for tokens, seconds in zip(TOKENS, row, strict=True):
            assert COSTS.step_seconds(size, size * (1 + tokens)) == pytest.approx(seconds)


def test_between_measurements_logarithms_are_linear():
    # Batch 16 lies in the middle of 8 and 32, 4 rows in the middle of 2 and 8.
    corners = [SECONDS[1][1], SECONDS[1][2], SECONDS[2][1], SECONDS[2][2]]
    assert COSTS.step_seconds(16, 16 * 4) == pytest.approx(np.prod(corners) ** 0.25)


def test_beyond_the_most_rows_it_is_linear():
    assert COSTS.step_seconds(1, 8 + 6) == pytest.approx(0.025 + 6 * 0.001)  # all: 7 ms in 7 rows, steeper than 5 in 6
    assert COSTS.step_seconds(32, 32 * 10) == pytest.approx(0.141 + 2 * 0.086 / 7)
    flat = CostTable([1], [0, 1, 2], [[0.01, 0.02, 0.02]], 1, {})
    assert flat.step_seconds(1, 5) == pytest.approx(0.03)
    assert CostTable([1], [0], [[0.01]], 1, {}).step_seconds(1, 3) == pytest.approx(0.03)


def test_beyond_the_batch_sizes():
    assert COSTS.step_seconds(64, 64) == pytest.approx(COSTS.step_seconds(32, 64))
    later = CostTable([8], TOKENS, SECONDS[1:2], 1, {})
    assert later.step_seconds(2, 4) == pytest.approx(0.033)


@given(tables(), st.integers(1, 200), st.lists(st.integers(0, 5000), min_size=2, max_size=20))
def test_more_rows_never_cost_less(costs, num_live, extra):
    rows = num_live + np.sort(extra)
    seconds = costs.step_seconds(num_live, rows)
    assert (seconds > 0).all() and (np.diff(seconds) >= -1e-12).all()
    assert [float(costs.step_seconds(num_live, row)) for row in rows] == pytest.approx(seconds.tolist())


def test_noise_is_smoothed_to_the_nearest_rising_times():
    noisy = CostTable([1], [0, 1, 2, 3], [[0.010, 0.014, 0.012, 0.020]], 1, {})
    assert noisy.step_seconds(1, np.arange(1, 5)) == pytest.approx([0.010, 0.013, 0.013, 0.020])


@given(tables(), st.integers(1, 100), st.floats(0, 1), st.floats(0, 0.1))
def test_best_is_the_best_of_all(costs, batch_size, acceptance, drafting):
    strategies = strategies_within(Strategy(8, 2, 16))
    choice = costs.best(batch_size, [acceptance, (1 - acceptance) / 2], strategies, drafting)
    none = batch_size / costs.step_seconds(batch_size, batch_size)
    rates = [none]
    for strategy in strategies[1:]:
        step = costs.step_seconds(batch_size, batch_size * (1 + strategy.tokens))
        tokens = batch_size * expected_tokens(strategy, [acceptance, (1 - acceptance) / 2])
        rates.append(tokens / (step + drafting))
    assert choice.tokens_per_second == pytest.approx(max(rates))
    assert choice.gain == pytest.approx(max(rates) / none) and choice.gain >= 1
    assert rates[strategies.index(choice.strategy)] == pytest.approx(max(rates))


def test_none_wins_ties():
    free = CostTable([1], [0, 4], [[0.01, 0.01]], 1, {})
    assert free.best(1, 0.0).strategy == NONE and free.best(1, 0.1).strategy == Strategy(4)
    assert CostTable([1], [0], [[0.01]], 1, {}).best(1, 1.0).strategy == NONE


def test_speculation_pays_at_small_batches():
    printed = COSTS.table(0.7)
    assert [size for size, _, _ in printed] == BATCHES
    gains = [gain for _, _, gain in printed]
    assert gains == sorted(gains, reverse=True) and gains[0] > 1.9
    assert COSTS.table(0.2)[-1] == (32, NONE, 1.0)


def test_drafting_may_cost_by_depth():
    by_depth = COSTS.best(1, 0.7, draft_seconds=lambda strategy: 0.0022 * strategy.depth)
    assert by_depth.strategy.depth < COSTS.best(1, 0.7).strategy.depth
    assert by_depth == COSTS.best(1, 0.7, [by_depth.strategy], 0.0022 * by_depth.strategy.depth)


def test_a_file_gives_back_what_was_saved(tmp_path):
    COSTS.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json", HERE) == COSTS == CostTable.load(tmp_path / "costs.json")
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    COSTS.save(tmp_path / "costs.json")
    monkeypatch.setattr(module.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        CostTable([1], [0], [[0.01]], 1, {}).save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == COSTS and len(list(tmp_path.iterdir())) == 1


def test_costs_of_elsewhere_are_refused(tmp_path):
    path = tmp_path / "costs.json"
    COSTS.save(path)
    with pytest.raises(UnusableCosts, match="measured for dtype 'float32' there and 'bfloat16' here: measure again"):
        CostTable.load(path, {**HERE, "dtype": "bfloat16"})
    with pytest.raises(UnusableCosts, match="measured for threads '2' there and '1' here, torch None there"):
        CostTable.load(path, {**HERE, "torch": "2.13", "threads": "1"})
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0}))
    with pytest.raises(UnusableCosts, match="has version 0, this reads 1: measure again"):
        CostTable.load(path)
    for text in ("{", "[]", "{}", '{"version": 1, "seconds": []}'):
        path.write_text(text)
        with pytest.raises(UnusableCosts, match=r"holds no costs \(.*\): measure again"):
            CostTable.load(path)
    with pytest.raises(FileNotFoundError):
        CostTable.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], [0], []), r"batch_sizes is \[\]: give rising numbers from 1 on"),
        (([8, 1], [0], [[1], [1]]), r"batch_sizes is \[8, 1\]: give rising"),
        (([1], [0, 0], [[1, 1]]), r"tokens is \[0, 0\]: give rising numbers from 0 on"),
        (([1], [1], [[1]]), "tokens begins with 1: measure 0 too"),
        (([1], [0, 1], [[1]]), r"seconds has shape \(1, 1\): give \(1, 2\), one for each"),
        (([1], [0, 1], [[1, 0]]), "seconds has 0.0: give positive, finite times"),
    ],
)
def test_messages_of_tables(arguments, message):
    with pytest.raises(ValueError, match=message):
        CostTable(*arguments, context_tokens=1, fingerprint={})


def test_messages_of_steps():
    with pytest.raises(ValueError, match=r"num_live is 2, num_rows 1\.0: give one sequence"):
        COSTS.step_seconds(2, [4, 1])
    with pytest.raises(ValueError, match="num_live is 0"):
        COSTS.step_seconds(0, 0)


def test_examples():
    assert doctest.testmod(module).failed == 0
