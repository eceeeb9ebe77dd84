"""Runs of neighbouring leaves of a prefix tree: what each costs, and where to cut. Integers and costs only."""

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_CAP_PRECISION = 1e-4  # relative; the costs themselves are estimates


@dataclass(frozen=True, eq=False)
class LeafRuns:
    """N leaves in depth-first order, each the end of one sequence; `[start, stop)` is a run of them.

    A run is a tree of its own. Between two neighbouring leaves the whole tree's axis holds just what the second adds to
    the first; so a run has the tokens that its leaves add, and those that its first leaf shares with the leaf before
    it, which a cut there computes twice. Costs are in units of one token.

    >>> runs = LeafRuns.of(np.array([2, 4]), np.array([0, 1, 2, 2, 3]), max_tokens=9, pair_cost=0)  # 5 6 7 | 5 6 8 9
    >>> [int(runs.tokens(start, stop)) for start, stop in [(0, 1), (1, 2), (0, 2)]]
    [3, 4, 5]
    """

    tokens_before: np.ndarray  # int64 [N + 1]: axis tokens before and up to each leaf, T at last
    cost_before: np.ndarray  # float64 [N + 1]: and their cost
    shared_tokens: np.ndarray  # int64 [N]: tokens of a leaf's path that the leaf before has too, 0 for the first
    shared_cost: np.ndarray  # float64 [N]
    max_tokens: int  # no run may have more

    @classmethod
    def of(cls, leaf_position, depth, max_tokens, pair_cost):
        """leaf_position int64 [N], sorted: the leaves' axis positions; depth int64 [T]: of every token of the axis."""
        tokens_before = np.append(0, leaf_position + 1)
        pairs_before = np.append(0, np.cumsum(depth + 1))[tokens_before]
        shared_tokens = depth[leaf_position] + 1 - np.diff(tokens_before)
        shared_pairs = shared_tokens * (shared_tokens + 1) // 2
        cost_before = tokens_before + pair_cost * pairs_before
        return cls(tokens_before, cost_before, shared_tokens, shared_tokens + pair_cost * shared_pairs, max_tokens)

    @property
    def num_leaves(self):
        return len(self.shared_tokens)

    def tokens(self, start, stop):
        return self.shared_tokens[start] + self.tokens_before[stop] - self.tokens_before[start]

    def cost(self, start, stop):
        return self.shared_cost[start] + self.cost_before[stop] - self.cost_before[start]

    def furthest_stops(self, cap=np.inf):
        """int64 [N]: where the longest run from each leaf ends that costs at most `cap`. One leaf is never too much."""
        most_cost = cap + self.cost_before[:-1] - self.shared_cost
        by_cost = np.searchsorted(self.cost_before, most_cost, side="right") - 1
        return np.maximum(np.minimum(self._stops_by_tokens, by_cost), np.arange(1, self.num_leaves + 1))

    @cached_property
    def _stops_by_tokens(self):
        most_tokens = self.max_tokens + self.tokens_before[:-1] - self.shared_tokens
        return np.searchsorted(self.tokens_before, most_tokens, side="right") - 1


def lowest_cap(runs, count):
    """The lowest cost per run, to a relative 1e-4, with which `count` runs are enough; `max_tokens` must allow that."""
    leaves = np.arange(runs.num_leaves)
    total = runs.cost_before[-1]
    low, high = max(total / count, runs.cost(leaves, leaves + 1).max()), total
    while high > low * (1 + _CAP_PRECISION):
        cap = (low + high) / 2
        if len(cut_at(runs.furthest_stops(cap))) - 1 <= count:
            high = cap
        else:
            low = cap
    return high


def cut_at(stops):
    """Runs that end at the stop of their first leaf; the furthest stops make the fewest runs. -> boundaries, 0 to N."""
    cuts = [0]
    while cuts[-1] < len(stops):
        cuts.append(int(stops[cuts[-1]]))
    return cuts


def cut_cheaply(runs, stops):
    """The runs that compute least twice, and few of them: each counts as one token more. -> boundaries, 0 to N.

    A shortest path from the last leaf back to the first: `rest[leaf]` is what the cuts at and behind a leaf cost. The
    stops that a leaf may choose from are a window that only moves to the left, so the queue of its minima makes this
    O(N).
    """
    num_leaves = runs.num_leaves
    cut_cost, stops = (runs.shared_cost + 1).tolist(), stops.tolist()
    rest = [0.0] * (num_leaves + 1)
    chosen = [num_leaves] * num_leaves
    window = deque([num_leaves])  # stops that may yet be chosen: positions fall, `rest` rises, so the best is first
    for leaf in reversed(range(num_leaves)):
        while window[0] > stops[leaf]:
            window.popleft()
        chosen[leaf] = window[0]
        rest[leaf] = cut_cost[leaf] + rest[window[0]]
        while window and rest[window[-1]] > rest[leaf]:
            window.pop()
        window.append(leaf)
    return cut_at(chosen)
