"""`CostTable`: measured seconds of a step, by batch size and tokens to verify, and the strategy that they favour."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from regrow.rollout.strategy import NONE, Strategy, expected_tokens_of, strategies_within

_VERSION = 1


class UnusableCosts(ValueError):
    """A file of costs that were measured elsewhere, by another version, or that cannot be read: measure again."""


@dataclass(frozen=True)
class Choice:
    """A strategy, its predicted tokens per second of the whole batch, and these over those of no speculation."""

    strategy: Strategy
    tokens_per_second: float
    gain: float


@dataclass(frozen=True)
class CostTable:
    """Seconds of one step, `seconds[i][j]` with `batch_sizes[i]` sequences and `tokens[j]` drafted tokens for each.

    batch_sizes and tokens rise; tokens begin with 0, the step without speculation. context_tokens: how long the
    sequences were. fingerprint: what the costs hold for, as model shape, dtype, device, threads, versions; strings.

    Raises ValueError for a grid that is not so, or seconds that are not positive.

    >>> costs = CostTable([1, 8], [0, 7], [[0.02, 0.025], [0.029, 0.05]], context_tokens=256, fingerprint={})
    >>> f"{costs.step_seconds(num_live=8, num_rows=64):.3f}"
    '0.050'
    """

    batch_sizes: Sequence[int]
    tokens: Sequence[int]
    seconds: Sequence[Sequence[float]]
    context_tokens: int
    fingerprint: Mapping[str, str]

    def __post_init__(self):
        for name, least in (("batch_sizes", 1), ("tokens", 0)):
            values = [int(value) for value in getattr(self, name)]
            object.__setattr__(self, name, values)
            if not values or values[0] < least or values != sorted(set(values)):
                raise ValueError(f"{name} is {values}: give rising numbers from {least} on")
        if self.tokens[0] != 0:
            raise ValueError(f"tokens begins with {self.tokens[0]}: measure 0 too, the step without speculation")
        seconds = np.array(self.seconds, dtype=float)
        if seconds.shape != (len(self.batch_sizes), len(self.tokens)):
            raise ValueError(
                f"seconds has shape {seconds.shape}: give {(len(self.batch_sizes), len(self.tokens))}, one for each "
                "batch size and number of tokens"
            )
        if not (np.isfinite(seconds).all() and (seconds > 0).all()):
            raise ValueError(f"seconds has {seconds.min()}: give positive, finite times")
        object.__setattr__(self, "seconds", seconds.tolist())
        object.__setattr__(self, "fingerprint", {str(key): str(value) for key, value in self.fingerprint.items()})

    def step_seconds(self, num_live, num_rows):
        """Predicted seconds of a step with `num_live` sequences and `num_rows` rows, a number or an array of them.

        Rows are the sequences' last tokens and the drafted ones. Between measurements the logarithm of the time is
        bilinear in those of batch size and rows per sequence; it never falls with the rows, for the measurements are
        smoothed to do so (isotonic regression). Beyond the most rows it is linear in them, with the slope of the last
        two or of all, whichever is steeper. More sequences than measured cost what as many rows of the largest batch
        do; fewer what the smallest batch does, at as many rows per sequence.

        ValueError for no sequence, or fewer rows than sequences.
        """
        num_rows = np.asarray(num_rows, dtype=float)
        if num_live < 1 or (num_rows < num_live).any():
            raise ValueError(
                f"num_live is {num_live}, num_rows {num_rows.min()}: give one sequence, a row each, or more"
            )
        largest = min(num_live, self.batch_sizes[-1])
        per_sequence = num_rows / largest
        above = int(np.searchsorted(self.batch_sizes, largest))
        if above == 0 or self.batch_sizes[above] == largest:
            return self._seconds_at(above, per_sequence)
        low, high = np.log(self.batch_sizes[above - 1 : above + 1])
        share = (np.log(largest) - low) / (high - low)
        return self._seconds_at(above - 1, per_sequence) ** (1 - share) * self._seconds_at(above, per_sequence) ** share

    def best(self, batch_size, acceptance, strategies=None, draft_seconds=0.0):
        """The strategy of most predicted tokens per second -> Choice; NONE wins ties, then the first.

        acceptance: as `expected_tokens` has it. strategies: up to the most tokens measured, if None. draft_seconds:
        what drafting for the batch adds to a step, or a function from the strategy to that.
        """
        if strategies is None:
            most = self.tokens[-1]
            strategies = strategies_within(Strategy(most, 4 if most > 1 else 1, most)) if most else [NONE]
        none = best = Choice(NONE, float(batch_size / self.step_seconds(batch_size, batch_size)), 1.0)
        drafting = draft_seconds if callable(draft_seconds) else lambda strategy: draft_seconds
        strategies = [strategy for strategy in strategies if strategy != NONE]
        steps = self.step_seconds(batch_size, [batch_size * (1 + strategy.tokens) for strategy in strategies])
        emitted = expected_tokens_of(strategies, acceptance)
        for strategy, step, tokens in zip(strategies, steps, emitted, strict=True):
            rate = float(batch_size * tokens / (step + drafting(strategy)))
            if rate > best.tokens_per_second:
                best = Choice(strategy, rate, rate / none.tokens_per_second)
        return best

    def table(self, acceptance, strategies=None, draft_seconds=0.0):
        """Rows to print, for each measured batch size: (batch size, best strategy, its predicted gain)."""
        choices = [(size, self.best(size, acceptance, strategies, draft_seconds)) for size in self.batch_sizes]
        return [(size, choice.strategy, choice.gain) for size, choice in choices]

    def save(self, path):
        """Writes JSON; whoever reads at the same time gets the old file or the new one."""
        path = Path(path)
        content = json.dumps({"version": _VERSION, **asdict(self)}, indent=1)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path, fingerprint=None):
        """The table in the file, if it is for this fingerprint (None: whatever it is for).

        Raises UnusableCosts, which names what differs, so that costs of another machine are never used in silence;
        FileNotFoundError where there are none. After both, measure.
        """
        try:
            content = json.loads(Path(path).read_text())
            version = content.pop("version")
            table = cls(**content) if version == _VERSION else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnusableCosts(f"{path} holds no costs ({error}): measure again") from error
        if table is None:
            raise UnusableCosts(f"{path} has version {version}, this reads {_VERSION}: measure again")
        if fingerprint is not None:
            there, here = table.fingerprint, {str(key): str(value) for key, value in fingerprint.items()}
            differing = [
                f"{key} {there.get(key)!r} there and {here.get(key)!r} here"
                for key in sorted({*there, *here})
                if there.get(key) != here.get(key)
            ]
            if differing:
                raise UnusableCosts(f"{path} was measured for {', '.join(differing)}: measure again")
        return table

    @cached_property
    def _smooth_seconds(self):
        return [_isotonic(row) for row in self.seconds]

    def _seconds_at(self, index, per_sequence):
        """Seconds at a measured batch size, for numbers of rows per sequence."""
        rows, seconds = np.array(self.tokens) + 1.0, self._smooth_seconds[index]
        within = np.exp(np.interp(np.log(per_sequence), np.log(rows), np.log(seconds)))
        if len(rows) > 1:
            last = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
            slope = max(last, (seconds[-1] - seconds[0]) / (rows[-1] - rows[0]))
        else:
            slope = seconds[0]  # nothing is known of more rows: as dear as the first
        return within + slope * np.maximum(per_sequence - rows[-1], 0)


def _isotonic(values):
    """The nearest values, in least squares, that do not fall (pool adjacent violators)."""
    pools = []  # (mean, size)
    for value in values:
        size = 1
        while pools and pools[-1][0] > value:
            mean, other = pools.pop()
            value, size = (value * size + mean * other) / (size + other), size + other
        pools.append((value, size))
    return np.concatenate([np.full(size, mean) for mean, size in pools])
