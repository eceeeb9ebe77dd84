"""How much to speculate: the limits of a draft, and the tokens that a step is expected to emit under them.

Acceptance is a float, the probability that a drafted token is accepted where the one above it was; or a table by rank,
`acceptance[r]` the probability that the child of rank `r` (0: tried first) is the accepted one below an accepted node;
or rows of such a table by depth, the last of which also holds for all deeper nodes. A float says nothing of the ranks
after the first: they count as never accepted.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

_SUM_TOLERANCE = 1e-6
_LOG_ODDS = np.arange(-6, 6)  # where buckets of scores begin
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_WIDTHS = (2, 4, 8)
_TREE_TOKENS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def _full_tree(depth, width, enough):
    """Nodes of the tree with `width` children at each node above `depth`, or some number from `enough` on."""
    level = total = 0
    for _ in range(depth):
        level = level * width or width
        total += level
        if total >= enough and width > 1:
            break
    return total


@dataclass(frozen=True)
class Strategy:
    """Limits of a draft: its longest path, the most children of a node, the most tokens to verify per sequence.

    tokens: `depth * width` if None, so that a chain's is its depth and a tree has room for `width` children at each
    node of one path. Depth 0 is `NONE`: do not speculate.

    Raises ValueError for a negative depth, a width below 1, and tokens that no draft of this depth and width has.

    >>> str(Strategy(4)), str(Strategy(4, width=2)), str(NONE)
    ('chain of 4', 'tree of 8, depth 4, width 2', 'none')
    """

    depth: int
    width: int = 1
    tokens: int | None = None

    def __post_init__(self):
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}: give the longest path in tokens, 0 for no speculation")
        if self.width < 1:
            raise ValueError(f"width is {self.width}: give the most children of a node, 1 for a chain")
        if self.depth == 0 and self.width != 1:
            raise ValueError(f"width is {self.width} at depth 0: use NONE, or a depth of at least 1")
        if self.tokens is None:
            object.__setattr__(self, "tokens", self.depth * self.width)
        most = _full_tree(self.depth, self.width, self.tokens)
        if not self.depth <= self.tokens <= most:
            remedy = f"at least {self.depth}" if self.tokens < self.depth else f"at most {most}"
            raise ValueError(f"tokens is {self.tokens} at depth {self.depth}, width {self.width}: give {remedy}")

    def shortened(self, depth):
        """The same limits with paths of at most `depth`."""
        depth = min(depth, self.depth)
        if depth == 0:
            return NONE
        return Strategy(depth, self.width, min(self.tokens, _full_tree(depth, self.width, self.tokens)))

    def __str__(self):
        if self.depth == 0:
            return "none"
        if self.width == 1:
            return f"chain of {self.depth}"
        return f"tree of {self.tokens}, depth {self.depth}, width {self.width}"


NONE = Strategy(0)


def parse(value):
    """A Strategy as it is, or NONE for "none". ValueError for anything else."""
    if isinstance(value, Strategy):
        return value
    if isinstance(value, str) and value == "none":
        return NONE
    raise ValueError(f'strategy is {value!r}: give a Strategy, as Strategy(depth=4), or "none"')


def strategies_within(limit):
    """NONE, chains and trees of a few depths and sizes up to the limit's: what a search looks at, in growing size."""
    found = {NONE, limit}
    for depth in (depth for depth in _DEPTHS if depth <= min(limit.depth, limit.tokens)):
        found.add(Strategy(depth))
        for width in (width for width in _WIDTHS if width <= limit.width):
            for tokens in (tokens for tokens in _TREE_TOKENS if depth < tokens <= limit.tokens):
                if tokens <= _full_tree(depth, width, tokens):
                    found.add(Strategy(depth, width, tokens))
    return sorted(found, key=lambda strategy: (strategy.tokens, strategy.width, strategy.depth))


def expected_tokens(strategy, acceptance):
    """The expected number of tokens a sequence gains in a step: 1 + those accepted, of the best tree in the limits.

    For a chain and a float `a` that is 1 + a + a^2 + ... + a^depth (Leviathan et al., 2023, equation 1).

    >>> expected_tokens(Strategy(2), 0.5)
    1.75
    """
    return 1.0 + float(sum(best_tree(strategy, acceptance)[1]))


def expected_tokens_of(strategies, acceptance):
    """`expected_tokens` of each: the best tree of fewer tokens is the beginning of that of more, so few are grown."""
    largest = {}
    for strategy in strategies:
        limits = (strategy.depth, strategy.width)
        largest[limits] = max(largest.get(limits, 0), strategy.tokens)
    grown = {limits: best_tree(Strategy(*limits, tokens), acceptance)[1] for limits, tokens in largest.items()}
    sums = {limits: np.cumsum([1.0, *probabilities]) for limits, probabilities in grown.items()}
    found = [(sums[strategy.depth, strategy.width], strategy.tokens) for strategy in strategies]
    return [float(total[min(tokens, len(total) - 1)]) for total, tokens in found]


def best_tree(strategy, acceptance):
    """(parents, path probabilities) of the tree in the limits with most expected tokens, the likeliest node first.

    Greedy is best, because a node is never likelier than the one above it (Chen et al., Sequoia, 2024, section 3).
    Nodes that are never accepted are left out. parents[i] < i; -1 is the last accepted token.

    >>> best_tree(Strategy(2, width=2, tokens=3), [0.5, 0.25])
    ([-1, -1, 0], [0.5, 0.25, 0.25])
    """
    rows = _rows(acceptance)
    parents, probabilities, heap = [], [], []

    def add_children(parent, depth, above):
        row = rows[min(depth, len(rows)) - 1]
        for rank, rate in enumerate(row[: strategy.width] if depth <= strategy.depth else []):
            if above * rate > 0:
                heappush(heap, (-above * rate, depth, rank, parent))

    add_children(-1, 1, 1.0)
    while heap and len(parents) < strategy.tokens:
        negative, depth, _, parent = heappop(heap)
        parents.append(parent)
        probabilities.append(-negative)
        add_children(len(parents) - 1, depth + 1, -negative)
    return parents, probabilities


def _rows(acceptance):
    """Any acceptance -> rows by depth of probabilities by rank."""
    if not hasattr(acceptance, "__len__"):
        acceptance = [acceptance]
    if len(acceptance) == 0:
        raise ValueError("acceptance is empty: give a float, or probabilities by rank")
    by_depth = hasattr(acceptance[0], "__len__")
    rows = [list(map(float, row)) for row in (acceptance if by_depth else [acceptance])]
    for row in rows:
        if not all(0 <= value <= 1 for value in row) or sum(row) > 1 + _SUM_TOLERANCE:
            raise ValueError(f"acceptance is {row}: give probabilities by rank, whose sum is at most 1")
    return rows


class AcceptanceRates:
    """Running acceptance by depth and rank: a table for `expected_tokens`.

    The first depth's rates begin at `prior` by rank, which counts as 4 observations, those of others at the rates of
    the depth above, which count as 16; after `window` observations of one of them older ones of all count half.
    """

    def __init__(self, depth, width, *, prior=0.6, window=512):
        self.prior, self.window = prior * (1 - prior) ** np.arange(width), window
        self.tries = np.zeros((depth, width))
        self.accepted = np.zeros((depth, width))
        self._table = None

    def observe(self, parents, path):
        """A verified draft's parents, in preorder, and the nodes accepted of it."""
        self._table = None
        on_path = {-1, *path}
        for node, (depth, rank) in enumerate(depths_and_ranks(parents)):
            if parents[node] in on_path and depth <= len(self.tries) and rank < len(self.prior):
                self.tries[depth - 1, rank] += 1
                self.accepted[depth - 1, rank] += node in on_path
        if self.tries.max() > self.window:  # all together, or depths that are seldom reached were never forgotten
            self.tries /= 2
            self.accepted /= 2

    def table(self):
        """[depth, width]: the rates; a later sibling's is what is left to it at most."""
        if self._table is None:
            self._table = self._rates()
        return self._table

    def _rates(self):
        rows, above, weight = [], self.prior, 4
        for tries, accepted in zip(self.tries, self.accepted, strict=True):
            above = (accepted + weight * above) / (tries + weight)
            above = np.diff(np.minimum(np.cumsum(above), 1.0), prepend=0.0)  # one child at most is accepted
            weight = 16  # a few unlucky tries at a depth must not end all paths there: nothing deeper were tried again
            rows.append(above)
        return np.array(rows)

    def scores(self, parents):
        """For each node of a draft the estimated probability that it and those above it are accepted."""
        table, scores = self.table().tolist(), []
        for parent, (depth, rank) in zip(parents, depths_and_ranks(parents), strict=True):
            rate = table[min(depth, len(table)) - 1][rank] if rank < len(self.prior) else 0.0
            scores.append(rate * (1.0 if parent < 0 else scores[parent]))
        return scores


def depths_and_ranks(parents):
    """For each node of a draft its depth, from 1, and its rank among its siblings, from 0."""
    places, num_children = [], {}
    for parent in parents:
        rank = num_children.get(parent, 0)
        num_children[parent] = rank + 1
        places.append((1 if parent < 0 else places[parent][0] + 1, rank))
    return places


class ScoreCalibration:
    """Corrects scores by a running ratio of accepted to expected nodes, for each unit of log odds of the score.

    A bucket's ratio begins at that of the next higher scores, the highest at 1, which counts as `prior_weight`
    observations; after `window` observations of one of them older ones of all count half. A draft's nodes in a bucket
    are one observation together, for they tend to be accepted together.
    """

    def __init__(self, *, prior_weight=8, window=512):
        self.prior_weight, self.window = prior_weight, window
        self.number, self.expected, self.accepted = np.zeros((3, len(_LOG_ODDS)))

    def observe(self, scores, path):
        """The scores of a verified draft's nodes, and the nodes that were accepted."""
        scores = np.asarray(scores, dtype=float)
        buckets, accepted = self._buckets(scores), np.zeros(len(scores))
        accepted[list(path)] = 1
        shares = 1 / np.bincount(buckets)[buckets]
        for sums, values in ((self.number, 1.0), (self.expected, scores), (self.accepted, accepted)):
            sums += np.bincount(buckets, shares * values, len(sums))
        if self.number.max() > self.window:
            for sums in (self.number, self.expected, self.accepted):
                sums /= 2

    def correct(self, scores):
        """Estimated acceptance for each score."""
        ratios, ratio = np.ones(len(_LOG_ODDS)), 1.0
        for bucket in reversed(range(len(ratios))):
            prior = self.prior_weight / (1 + np.exp(-_LOG_ODDS[bucket] - 0.5))
            ratio = ratios[bucket] = (self.accepted[bucket] + prior * ratio) / (self.expected[bucket] + prior)
        scores = np.asarray(scores, dtype=float)
        return np.minimum(scores * ratios[self._buckets(scores)], 1.0).tolist()

    def _buckets(self, scores):
        scores = np.clip(scores, 1e-9, 1 - 1e-9)
        return np.maximum(np.searchsorted(_LOG_ODDS, np.log(scores / (1 - scores)), side="right") - 1, 0)
