"""The selectors: what they keep against trying every number, and what they are worth on a simulated engine."""

import doctest
import random
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.rollout import selector as module
from regrow.rollout.costs import CostTable
from regrow.rollout.drafters import Draft
from regrow.rollout.selector import Calibrated, Fixed, StepOutcome
from regrow.rollout.strategy import NONE, Strategy

# Seconds of a small model on two CPU cores, and what they come to at 64 sequences; rows per sequence are tokens + 1.
COSTS = CostTable(
    [1, 8, 32, 64],
    [0, 1, 7, 31],
    [
        [0.018, 0.020, 0.025, 0.050],
        [0.029, 0.033, 0.050, 0.141],
        [0.055, 0.070, 0.141, 0.53],
        [0.085, 0.115, 0.27, 1.05],
    ],
    context_tokens=256,
    fingerprint={},
)
SIZES = [1, 4, 16, 64]


class Process:
    """Drafts whose acceptance is known: `draft` gives (Draft, true probability of each node, given the one above)."""

    level_seconds = 0.0  # of drafting, for each level of depth

    def __init__(self, seed=0):
        self.draw = random.Random(seed)


class Chains(Process):
    """Chains without scores, of one acceptance."""

    def __init__(self, acceptance, level_seconds=0.0):
        super().__init__()
        self.acceptance, self.level_seconds = acceptance, level_seconds

    def draft(self, limit):
        return Draft.chain([0] * limit.depth), [self.acceptance] * limit.depth


class Drawn(Chains):
    """Chains with distributions."""

    def draft(self, limit):
        distributions = {node: None for node in range(-1, limit.depth - 1)}
        return Draft.chain([0] * limit.depth, None, distributions), [self.acceptance] * limit.depth


class Scored(Process):
    """Chains that are easy or hard by turns, and know it up to `bend`: scores are the truth to that power."""

    def __init__(self, easy, hard, bend=1.0, level_seconds=0.0):
        super().__init__()
        self.rates, self.bend, self.level_seconds = (easy, hard), bend, level_seconds

    def draft(self, limit):
        rate = self.draw.choice(self.rates)
        scores = [rate ** ((depth + 1) * self.bend) for depth in range(limit.depth)]
        return Draft.chain([0] * limit.depth, scores), [rate] * limit.depth


class Boasting(Process):
    """Says 0.9 and is never right."""

    def __init__(self, level_seconds=0.0):
        super().__init__()
        self.level_seconds = level_seconds

    def draft(self, limit):
        return Draft.chain([0] * limit.depth, [0.9] * limit.depth), [0.0] * limit.depth


class Branching(Process):
    """Two children at each node of the first path, as many as fit; without scores."""

    def draft(self, limit):
        width = min(limit.width, 2)
        levels = min(limit.depth, limit.tokens // width)
        parents, above, rates = [], -1, []
        for _ in range(levels):
            first = len(parents)
            parents += [above]
            rates += [0.5]
            above = first
        if width == 2:  # preorder: the second children come after the whole path, the deepest first
            for level in range(levels - 1, -1, -1):
                parents += [level - 1]
                rates += [0.3]
        return Draft(parents, [0] * len(parents)), rates


def cut(draft, rates, kept):
    """The draft of these nodes alone."""
    number = {-1: -1, **{node: place for place, node in enumerate(kept)}}
    scores = None if draft.scores is None else [draft.scores[node] for node in kept]
    parents = [number[draft.parents[node]] for node in kept]
    return Draft(parents, [0] * len(kept), scores, draft.distributions), [rates[node] for node in kept]


def accepted_path(draft, rates, draw):
    path, node = [], -1
    while node is not None:
        number, total, above, node = draw.random(), 0.0, node, None
        for child in (child for child, parent in enumerate(draft.parents) if parent == above):
            total += rates[child]
            if number < total:
                node = child
                path.append(child)
                break
    return path


def simulate(selector, process, num_live, steps, costs=COSTS, slow=1.0):
    """Tokens per second: tokens as expected by the truth, so that only choices differ; seconds of the table."""
    draw, emitted, seconds = random.Random(1), 0.0, 0.0
    for _ in range(steps):
        limit = selector.ask(num_live)
        drafts, truths = [Draft()] * num_live, [[]] * num_live
        if limit != NONE:
            drafts, truths = zip(*[process.draft(limit) for _ in range(num_live)], strict=True)
            kept = selector.keep(num_live, drafts)
            drafts, truths = zip(*map(cut, drafts, truths, kept), strict=True)
        rows = num_live + sum(map(len, drafts))
        step, drafting = slow * float(costs.step_seconds(num_live, rows)), process.level_seconds * limit.depth
        paths = [accepted_path(draft, truth, draw) for draft, truth in zip(drafts, truths, strict=True)]
        selector.observe(StepOutcome(num_live, drafts, paths, drafting, step))
        seconds += step + drafting
        emitted += num_live + sum(map(expected_accepted, drafts, truths))
    return emitted / seconds


def expected_accepted(draft, rates):
    reached = []
    for parent, rate in zip(draft.parents, rates, strict=True):
        reached.append(rate * (1.0 if parent < 0 else reached[parent]))
    return sum(reached)


PROCESSES = {
    "chains, often right": lambda: Chains(0.75),
    "chains, seldom right": lambda: Chains(0.3),
    "chains, dear": lambda: Chains(0.7, level_seconds=0.0022),
    "drawn, often right": lambda: Drawn(0.75),
    "drawn, dear": lambda: Drawn(0.7, level_seconds=0.0022),
    "drawn, seldom right": lambda: Drawn(0.3),
    "trees": Branching,
    "scored": lambda: Scored(0.9, 0.2),
    "scored, dear": lambda: Scored(0.9, 0.2, level_seconds=0.0022),
    "overconfident": lambda: Scored(0.8, 0.3, bend=0.3),
    "shy": lambda: Scored(0.8, 0.6, bend=4.0),
}


@cache
def best_fixed(name, num_live):
    steps = max(64 // num_live, 8) * 4
    strategies = [NONE, *[Strategy(depth) for depth in (1, 2, 3, 4, 6, 8, 12, 16)]]
    if name == "trees":
        strategies += [Strategy(depth, 2) for depth in (1, 2, 3, 4, 6, 8)]
    return max(simulate(Fixed(strategy), PROCESSES[name](), num_live, steps) for strategy in strategies)


@pytest.mark.parametrize("num_live", SIZES)
@pytest.mark.parametrize("name", PROCESSES)
def test_as_good_as_the_best_fixed_strategy(name, num_live):
    rate = simulate(Calibrated(COSTS), PROCESSES[name](), num_live, steps=600 if num_live < 16 else 150)
    assert rate >= 0.97 * best_fixed(name, num_live)


# Of scores, of rates by depth, and of limits that must be right beforehand.
@pytest.mark.parametrize("level_seconds", [0.0, 0.0022])
@pytest.mark.parametrize("num_live", SIZES)
@pytest.mark.parametrize(
    "process", [Boasting, lambda seconds: Chains(0.0, seconds), lambda seconds: Drawn(0.0, seconds)]
)
def test_a_useless_drafter_costs_little(process, num_live, level_seconds):
    none = num_live / COSTS.step_seconds(num_live, num_live)
    assert simulate(Calibrated(COSTS), process(level_seconds), num_live, steps=300) >= 0.98 * none


class Changing(Process):
    """Another process after a number of drafts."""

    def __init__(self, first, then, num_drafts):
        super().__init__()
        self.first, self.then, self.left = first, then, num_drafts
        self.level_seconds = first.level_seconds

    def draft(self, limit):
        self.left -= 1
        return (self.first if self.left >= 0 else self.then).draft(limit)


@pytest.mark.parametrize("drafts", [Chains, Drawn])
def test_a_drafter_that_breaks_is_dropped_and_one_that_mends_is_used(drafts):
    none = 4 / COSTS.step_seconds(4, 4)
    selector = Calibrated(COSTS)
    assert simulate(selector, drafts(0.75, 0.0005), 4, steps=300) > 1.5 * none
    assert simulate(selector, drafts(0.0, 0.0005), 4, steps=300) > 0.9 * none
    assert simulate(selector, drafts(0.0, 0.0005), 4, steps=300) > 0.98 * none
    assert simulate(selector, drafts(0.75, 0.0005), 4, steps=600) > 1.5 * none


def test_pauses_grow_to_64_steps_and_end_when_the_batch_has_shrunk():
    selector, process, tried = Calibrated(COSTS), Boasting(level_seconds=0.002), []
    for step in range(300):
        if selector.ask(8) != NONE:
            tried.append(step)
        simulate(selector, process, 8, steps=1)
    assert [later - step - 1 for step, later in pairwise(tried)] == [2, 4, 8, 16, 32, 64, 64, 64]
    assert selector.ask(8) == NONE and selector.ask(7) != NONE


def test_the_batch_may_shrink():
    # From 64 sequences to one, as the tail of a rollout does.
    selector, emitted, best = Calibrated(COSTS), 0.0, 0.0
    for num_live in (64, 32, 16, 8, 4, 2, 1):
        emitted += 1 / simulate(selector, Chains(0.7, 0.0005), num_live, steps=100)
        fixed = [simulate(Fixed(Strategy(depth)), Chains(0.7, 0.0005), num_live, 4) for depth in (1, 2, 3, 4, 6, 8)]
        best += 1 / max(fixed)
    assert best / emitted >= 0.97


@st.composite
def drafts(draw, scored=True):
    parents, scores = [], []
    for node in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([-1, *path_to(parents, node - 1)]))
        parents.append(parent)
        scores.append(draw(st.floats(0, 1)) * (1.0 if parent < 0 else scores[parent]))
    return Draft(parents, range(len(parents)), scores if scored else None)


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path


def settled(**options):
    """A selector that has seen one step, of which it has learnt nothing but that speculation pays."""
    selector = Calibrated(COSTS, **options)
    selector.ask(1)
    selector.observe(StepOutcome(1, [Draft.chain([0] * 9, [1.0] * 9)], [range(9)], 0.0, 0.025))
    selector.ask(1)
    return selector


def is_closed(draft, kept):
    return kept == sorted(set(kept)) and all(draft.parents[node] in {-1, *kept} for node in kept)


@given(st.lists(drafts(), min_size=1, max_size=9))
def test_keep_is_the_best_number_of_all(given_drafts):
    num_live, margin = len(given_drafts), 0.02
    scores = np.sort([score for draft in given_drafts for score in draft.scores])[::-1]
    rates = [
        (num_live + sum(scores[:number])) / COSTS.step_seconds(num_live, num_live + number)
        for number in range(len(scores) + 1)
    ]
    kept = settled(margin=margin).keep(num_live, given_drafts)
    assert all(map(is_closed, given_drafts, kept))
    total = num_live + sum(
        draft.scores[node] for draft, nodes in zip(given_drafts, kept, strict=True) for node in nodes
    )
    number = sum(map(len, kept))
    assert total == pytest.approx(num_live + sum(scores[:number]))
    assert rates[number] == pytest.approx(max(rates) if max(rates) > rates[0] * (1 + margin) else rates[0])


@given(st.lists(st.one_of(drafts(), drafts(scored=False)), min_size=1, max_size=9), st.booleans())
def test_what_is_kept_has_its_parents(given_drafts, fresh):
    selector = Calibrated(COSTS) if fresh else settled()
    selector.ask(len(given_drafts))
    kept = selector.keep(len(given_drafts), given_drafts)
    assert len(kept) == len(given_drafts) and all(map(is_closed, given_drafts, kept))


def test_none_is_kept_where_it_does_not_pay():
    selector = settled()
    assert selector.keep(2, [Draft.chain([1, 2], [0.04, 0.01]), Draft()]) == [[], []]
    assert selector.keep(2, [Draft.chain([1, 2], [0.9, 0.001]), Draft()]) == [[0], []]
    assert settled(margin=0.9).keep(1, [Draft.chain([1], [0.9])]) == [[]]


@given(st.lists(drafts(), min_size=1, max_size=6), st.lists(drafts(), min_size=1, max_size=6), st.booleans())
def test_drafts_with_distributions_are_never_cut(drawn, chosen, fresh):
    drawn = [Draft(draft.parents, draft.tokens, draft.scores, {}) for draft in drawn]
    selector = Calibrated(COSTS) if fresh else settled()
    selector.ask(len(drawn) + len(chosen))
    kept = selector.keep(len(drawn) + len(chosen), [*drawn, *chosen])
    assert kept[: len(drawn)] == [list(range(len(draft))) for draft in drawn]


def test_limits_of_drawn_drafts_come_from_steps_before():
    selector = Calibrated(COSTS)
    first = selector.ask(64)
    assert first == Strategy(1)
    simulate(selector, Drawn(0.75), 64, steps=40)
    assert selector.ask(64) == COSTS.best(64, 0.75).strategy
    assert selector.ask(1).depth > selector.ask(64).depth


def test_a_common_error_of_the_table_changes_nothing():
    for slow in (1.0, 1.7):
        selector = Calibrated(COSTS)
        rate = simulate(selector, Chains(0.75, 0.0), 8, steps=100, slow=slow)
        assert rate * slow == pytest.approx(simulate(Calibrated(COSTS), Chains(0.75), 8, steps=100))
        assert selector.table_error == (None, pytest.approx(slow))


def test_an_error_of_the_drafted_rows_alone_does():
    # A step of one drafted token takes 1.9 times what the table says, 2.1 times one without: two tokens are too few.
    selector, draft = settled(), Draft.chain([0], [0.6])
    assert selector.keep(1, [draft]) == [[0]]
    for _ in range(40):
        selector.observe(StepOutcome(1, [Draft()], [[]], 0.0, 0.018))
        selector.observe(StepOutcome(1, [draft], [[0]], 0.0, 1.9 * 0.020))
    assert selector.table_error == pytest.approx((1.0, 1.9))
    assert selector.keep(1, [Draft.chain([0], [1.0])]) == [[]]


@pytest.mark.parametrize("strategy", [NONE, Strategy(3), "none"])
def test_fixed_asks_the_same_and_keeps_all(strategy):
    selector = Fixed(strategy)
    assert selector.ask(1) == selector.ask(64) == (NONE if strategy == "none" else strategy)
    assert selector.keep(2, [Draft.chain([1, 2], [0.0, 0.0]), Draft()]) == [[0, 1], []]


def test_a_limit_of_none_never_drafts():
    selector = Calibrated(COSTS, limit="none")
    for num_live in (1, 1, 4):
        assert selector.ask(num_live) == NONE
        selector.observe(StepOutcome(num_live, [Draft()] * num_live, [[]] * num_live, 0.0, 0.02))


def test_examples():
    assert doctest.testmod(module).failed == 0
