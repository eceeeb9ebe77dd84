"""`Selector`: what the engine asks before and after it drafts, and tells after it verified.

Speculation spends computation on tokens that may be rejected: it pays at small batches and loses at large ones. So the
calibrated selector weighs the expected tokens of each step against measured costs, no speculation among the choices.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from regrow.rollout.drafters import Draft
from regrow.rollout.strategy import NONE, AcceptanceRates, ScoreCalibration, Strategy, parse, strategies_within

_PATIENCE = 4.0  # steps without speculation in whose time speculation may stay behind before it stops
_LONGEST_PAUSE = 64  # steps
_TRIAL_COST = 1.25  # of a step that is only tried, relative to none
_LOOK_FURTHER_EVERY = 16  # steps: nodes that seem not to be worth it are verified too, lest a mistake last
_LOOK_FURTHER_COST = 1.1  # of such a step, relative to the best
_REMEMBERED_STEPS = 256  # for which a step's time says how wrong the table is


@dataclass(frozen=True)
class StepOutcome:
    """A step as it went: drafts as verified (empty ones where nothing was drafted), one for each live sequence."""

    num_live: int
    drafts: Sequence[Draft]
    paths: Sequence[Sequence[int]]  # the accepted nodes of each draft, from the top
    draft_seconds: float  # of the batch
    step_seconds: float  # of the batch: the forward and the verification


class Selector(ABC):
    """The engine calls, each step: ask, keep where something was drafted, observe. Nothing here looks at a clock."""

    @abstractmethod
    def ask(self, num_live):
        """The limits for drafting in this step; NONE: do not draft."""

    @abstractmethod
    def keep(self, num_live, drafts):
        """For each draft the nodes to verify, rising and with their parents."""

    def observe(self, outcome):  # noqa: B027 (a fixed choice learns nothing)
        """How the step went."""


class Fixed(Selector):
    """Always the same strategy, whatever it costs.

    >>> str(Fixed("none").ask(num_live=8))
    'none'
    """

    def __init__(self, strategy):
        self.strategy = parse(strategy)

    def ask(self, num_live):
        return self.strategy

    def keep(self, num_live, drafts):
        return [list(range(len(draft))) for draft in drafts]


class Calibrated(Selector):
    """Verifies what pays by measured costs and observed acceptance, and stops drafting where that does not pay.

    Of all nodes drafted in a step, the n likeliest are verified, n such that (sequences + expected accepted tokens) /
    (seconds of the step + of drafting) is largest; none, unless n exceeds none's rate by `margin`. Drafters' scores are
    corrected by how often nodes of such scores were accepted; without scores, acceptance by depth and rank stands in.

    A draft with distributions is never cut, for a cut that depends on which tokens were drawn changes what is emitted:
    the limits that `ask` gives beforehand, from the acceptance in earlier steps, are all that bounds it.

    A step's profit is its tokens per sequence less those that no speculation emits in the same time. Where the sum of
    profits, held within +-4, is -4, as it is at first, nothing is drafted for 1, 2, 4, ... 64 steps; then a step is
    tried that costs little, and twice as long is waited if it does not pay. As often, the best nodes are verified where
    drafts are thought to be worth nothing, and each 16th step verifies some more than is thought best. Sum and wait
    begin anew when `num_live` passes a power of two.

    Where drafting takes time, no deeper drafts are asked for than pay by the acceptance by depth, and two levels more.

    costs: a CostTable. limit: the largest draft to ask for.
    """

    def __init__(self, costs, limit=None, margin=0.02):
        self.costs, self.margin = costs, margin
        self.limit = Strategy(depth=16, width=4, tokens=32) if limit is None else parse(limit)
        self._strategies = strategies_within(self.limit)
        self._scores = ScoreCalibration()
        self._rates = AcceptanceRates(max(self.limit.depth, 1), self.limit.width)
        self._sampled = self._scored = None  # whether drafts have distributions, and scores; None before the first
        self._asked, self._trying = NONE, False  # in this step; trying: only to find out
        self._cached = (None, NONE)
        self._level_seconds = deque(maxlen=9)  # seconds of drafting / depth asked for
        self._errors = {False: deque(maxlen=31), True: deque(maxlen=31)}  # without and with drafted rows
        self._steps, self._bucket = 0, None
        self._profit, self._pause, self._idle = -_PATIENCE, 1, 1  # idle: steps since anything was verified or tried

    def ask(self, num_live):
        if num_live.bit_length() != self._bucket:
            if self._bucket is not None:
                self._profit, self._pause, self._idle = 0.0, 1, 1
            self._bucket = num_live.bit_length()
        self._trying = self._stopped and self._due
        self._asked = self._limits(num_live)
        return self._asked

    def keep(self, num_live, drafts):
        whole = [draft.distributions is not None for draft in drafts]
        scores = [[] if uncut else self._falling_scores(draft) for draft, uncut in zip(drafts, whole, strict=True)]
        num_whole = sum(len(draft) for draft, uncut in zip(drafts, whole, strict=True) if uncut)
        all_scores = np.array([score for draft_scores in scores for score in draft_scores])
        order = np.argsort(-all_scores, kind="stable")  # parents first among equals: they come first in each draft
        number = self._number(num_live, num_whole, all_scores[order])
        chosen = np.zeros(len(order), bool)
        chosen[order[:number]] = True
        kept, begin = [], 0
        for draft, uncut, draft_scores in zip(drafts, whole, scores, strict=True):
            end = begin + len(draft_scores)
            kept.append(list(range(len(draft))) if uncut else np.flatnonzero(chosen[begin:end]).tolist())
            begin = end
        return kept

    def observe(self, outcome):
        self._steps += 1
        num_tokens = sum(map(len, outcome.drafts))
        predicted = self.costs.step_seconds(outcome.num_live, outcome.num_live + num_tokens)
        self._errors[num_tokens > 0].append((self._steps, outcome.step_seconds / float(predicted)))
        self._learn([(draft, path) for draft, path in zip(outcome.drafts, outcome.paths, strict=True) if len(draft)])
        if self._asked == NONE:
            self._idle += 1
            return
        self._level_seconds.append(outcome.draft_seconds / self._asked.depth)
        accepted = sum(map(len, outcome.paths))
        self._settle(num_tokens, self._profit_of(outcome.num_live, num_tokens, accepted))

    @property
    def table_error(self):
        """Observed over predicted seconds of recent steps, (without, with drafted rows); None where too few were seen.

        What is common to both changes no choice. Where they differ, their ratio corrects the costs of verifying.
        """
        recent = {
            drafted: [error for step, error in errors if step > self._steps - _REMEMBERED_STEPS]
            for drafted, errors in self._errors.items()
        }
        return tuple(median(recent[drafted]) if len(recent[drafted]) >= 8 else None for drafted in (False, True))

    def _limits(self, num_live):
        if self.limit == NONE:
            return NONE
        if self._stopped and not self._trying:
            return NONE
        cheap = self._seconds_per_level * self.limit.depth <= self.margin * self._seconds(num_live, 0)
        if self._sampled is False and cheap:
            return self.limit
        best = NONE if self._trying else self._best(num_live)
        if self._scored and not self._sampled:
            return self.limit.shortened(best.depth + 2)  # some are better than the mean that rates are
        if best == NONE and self._due:
            self._trying = True
            return Strategy(min(max(1, self._affordable(num_live) // num_live), self.limit.depth))
        return best

    def _best(self, num_live):
        # A search takes milliseconds, and rates change slowly but at first.
        key = (num_live, self._steps if self._steps < 16 else 16 + self._steps // 16)
        if self._cached[0] != key:
            level = self._seconds_per_level
            choice = self.costs.best(
                num_live, self._rates.table(), self._strategies, lambda strategy: level * strategy.depth
            )
            self._cached = key, choice.strategy if choice.gain > 1 + self.margin else NONE
        return self._cached[1]

    @property
    def _stopped(self):
        return self._profit <= -_PATIENCE

    @property
    def _due(self):
        return self._idle >= self._pause

    @property
    def _seconds_per_level(self):
        return median(self._level_seconds) if self._level_seconds else 0.0  # a warm-up's long step does not count

    def _seconds(self, num_live, numbers):
        """Predicted seconds of steps that verify these numbers of drafted tokens."""
        without, drafted = self.table_error
        factor = drafted / without if without and drafted else 1.0
        seconds = self.costs.step_seconds(num_live, num_live + np.asarray(numbers))
        return np.where(np.asarray(numbers) > 0, seconds * factor, seconds)

    def _number(self, num_live, num_whole, scores):
        """How many of the scored nodes, likeliest first, to verify beside those that are not cut."""
        seconds = self._seconds(num_live, num_whole + np.arange(len(scores) + 1))
        rates = (num_live + np.cumsum([0.0, *scores])) / (seconds + self._seconds_per_level * self._asked.depth)
        number = int(np.argmax(rates))
        if rates[number] <= rates[0] * (1 + self.margin):
            number = 0
        if number == 0 and len(scores) and num_whole == 0 and self._due:
            self._trying = True
        if self._trying:
            return min(self._affordable(num_live), len(scores))
        if number > 0 and self._steps % _LOOK_FURTHER_EVERY == 0:
            number = max(number, int(np.searchsorted(seconds, _LOOK_FURTHER_COST * seconds[number], side="right")) - 1)
        return number

    def _affordable(self, num_live):
        """How many drafted tokens to verify in a step that is only tried: at least one."""
        numbers = np.arange(self.limit.tokens * num_live + 1)
        seconds = self._seconds(num_live, numbers)
        return max(1, int(np.searchsorted(seconds, _TRIAL_COST * seconds[0], side="right")) - 1)

    def _falling_scores(self, draft):
        if draft.scores is None:
            return self._rates.scores(draft.parents)
        scores = self._scores.correct(draft.scores)
        for node, parent in enumerate(draft.parents):
            if parent >= 0:
                scores[node] = min(scores[node], scores[parent])
        return scores

    def _learn(self, verified):
        if verified:
            self._sampled = any(draft.distributions is not None for draft, _ in verified)
            self._scored = all(draft.scores is not None for draft, _ in verified)
        for draft, path in verified:
            self._rates.observe(draft.parents, path)
            if draft.scores is not None:
                self._scores.observe(draft.scores, path)

    def _profit_of(self, num_live, num_tokens, accepted):
        none, step = self._seconds(num_live, [0, num_tokens])
        drafting = self._seconds_per_level * self._asked.depth
        return float((num_live + accepted) / num_live - (step + drafting) / none)

    def _settle(self, num_tokens, profit):
        """After a step that drafted: whether the next one does too, and how long until something is tried."""
        if num_tokens == 0 and profit > -self.margin:
            self._idle += 1  # looking cost nothing: look again
            return
        if self._trying:
            self._pause = max(1, self._pause // 4) if profit > 0 else min(2 * self._pause, _LONGEST_PAUSE)
        self._idle = 0 if self._trying or num_tokens else self._idle + 1
        self._profit = min(max(self._profit + profit, -_PATIENCE), _PATIENCE)
