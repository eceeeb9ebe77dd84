"""Times implementations in turn, A B A B ..., in one process, so that a machine whose speed drifts is fair to all."""

import statistics
import time
from dataclasses import dataclass

import torch


@dataclass
class Times:
    """Seconds of each round."""

    rounds: list

    @property
    def median(self):
        return statistics.median(self.rounds)

    @property
    def best(self):
        return min(self.rounds)

    @property
    def spread(self):
        """Half the distance between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.rounds, n=4)
        return (high - low) / 2 / self.median


def wall_clock(run):
    """Seconds that one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(implementations, rounds, timer=wall_clock):
    """implementations: name -> what `timer` takes, a callable without arguments by default. One warm-up each, then
    `rounds` rounds: name -> Times."""
    for run in implementations.values():
        timer(run)
    seconds = {name: [] for name in implementations}
    for _ in range(rounds):
        for name, run in implementations.items():
            seconds[name].append(timer(run))
    return {name: Times(values) for name, values in seconds.items()}


def ratio(times, peer, ours):
    """How many times faster than the peer: the median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(times[peer].rounds, times[ours].rounds, strict=True))


def is_tie(times, a, b):
    """Whether the medians differ by less than the rounds of either spread."""
    a, b = times[a], times[b]
    return abs(a.median - b.median) < max(a.median * a.spread, b.median * b.spread)


class RegisterLoop:
    """Multiply-adds in registers on all threads: one more implementation to interleave, which keeps its best rate.

    The ceiling must come from the same minutes as what is held against it, or a machine whose clock drifts gives
    shares above 1.
    """

    def __init__(self, dtype, iterations=5_000_000, repeats=5):
        self.like = torch.zeros(1, dtype=dtype)
        self.iterations, self.repeats = iterations, repeats
        self.peak = 0.0  # operations per second

    def __call__(self):
        for _ in range(self.repeats):
            start = time.perf_counter()
            operations = torch.ops.regrow.register_loop(self.like, self.iterations)
            self.peak = max(self.peak, operations / (time.perf_counter() - start))
