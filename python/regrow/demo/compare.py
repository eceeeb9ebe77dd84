"""Interleaved runs of both updates on the same data: time and agreement."""

import statistics
import time
from dataclasses import dataclass

from regrow.demo.updates import Update, packed_update, relative_l2, replicated_update

ROUNDS = 3
MIN_ROUNDS = 2
TIME_LIMIT_SECONDS = 130.0


@dataclass(frozen=True)
class Comparison:
    """Both updates of the last round, the largest gradient difference of all rounds, and seconds of each."""

    replicated: Update
    packed: Update
    relative_l2: float
    replicated_seconds: list[float]
    packed_seconds: list[float]

    @property
    def speedup(self):
        return statistics.median(self.replicated_seconds) / statistics.median(self.packed_seconds)


def compare(model, batch, *, rounds=ROUNDS, time_limit_seconds=TIME_LIMIT_SECONDS, on_step=lambda label, count: None):
    """Runs replicated and packed in turn, `rounds` times, without a warm-up; leaves the model with "regrow" attention.

    Beyond `MIN_ROUNDS`, no round starts that would likely end after `time_limit_seconds`. `on_step(label,
    count)` is called after `count` more sequences of the replicated update, and after each packed update.
    """
    replicated_seconds, packed_seconds, differences = [], [], []
    started = time.perf_counter()
    for done in range(rounds):
        elapsed = time.perf_counter() - started
        if done >= MIN_ROUNDS and elapsed * (done + 1) / done > time_limit_seconds:
            break
        model.set_attn_implementation("sdpa")
        replicated, seconds = timed(replicated_update, model, batch, lambda count: on_step("replicated", count))
        replicated_seconds.append(seconds)
        model.set_attn_implementation("regrow")
        packed, seconds = timed(packed_update, model, batch)
        packed_seconds.append(seconds)
        on_step("packed", 1)
        differences.append(relative_l2(packed.gradients, replicated.gradients))
    return Comparison(replicated, packed, max(differences), replicated_seconds, packed_seconds)


def timed(function, *arguments):
    """Returns (what the function returns, seconds it took)."""
    started = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - started
