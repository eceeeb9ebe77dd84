"""Interleaved runs of both updates on the same data: memory, time and agreement."""

import statistics
import time
from dataclasses import dataclass

from regrow.demo.updates import Update, packed_update, relative_l2, replicated_update
from regrow.live_bytes import peak_bytes

ROUNDS = 2
TIME_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Comparison:
    """Both updates of the last round, the largest gradient difference of all rounds, seconds of each round by name.

    peak_bytes: live bytes beyond the model's weights, gradients included, by name.
    """

    replicated: Update
    packed: Update
    relative_l2: float
    seconds: dict[str, list[float]]
    peak_bytes: dict[str, int]

    @property
    def speedup(self):
        """The median of the ratios round by round, so that a machine whose speed drifts is fair to both."""
        return statistics.median(
            replicated / packed
            for replicated, packed in zip(self.seconds["replicated"], self.seconds["packed"], strict=True)
        )


def compare(model, batch, *, rounds=ROUNDS, time_limit_seconds=TIME_LIMIT_SECONDS, on_step=lambda label, count: None):
    """Runs replicated and packed in turn, `rounds` times after one that counts bytes and warms up.

    Beyond the first, no timed round starts that would likely end after `time_limit_seconds`. `on_step(label, count)` is
    called after `count` more sequences of the replicated update, and after each packed update. Leaves the model with
    "regrow" attention.
    """
    seconds, peaks, differences = {"replicated": [], "packed": []}, {}, []
    started = time.perf_counter()
    for done in range(rounds + 1):
        elapsed = time.perf_counter() - started
        if done >= 2 and elapsed * (done + 1) / done > time_limit_seconds:
            break
        updates = {}
        for name, attention in (("replicated", "sdpa"), ("packed", "regrow")):
            model.set_attn_implementation(attention)
            run = UPDATES[name]
            began = time.perf_counter()
            if done == 0:
                updates[name], peaks[name] = peak_bytes(lambda: run(model, batch, on_step), model.device)  # noqa: B023  at once
            else:
                updates[name] = run(model, batch, on_step)
                seconds[name].append(time.perf_counter() - began)
        differences.append(relative_l2(updates["packed"].gradients, updates["replicated"].gradients))
    return Comparison(updates["replicated"], updates["packed"], max(differences), seconds, peaks)


def _replicated(model, batch, on_step):
    return replicated_update(model, batch, lambda count: on_step("replicated", count))


def _packed(model, batch, on_step):
    update = packed_update(model, batch)
    on_step("packed", 1)
    return update


UPDATES = {"replicated": _replicated, "packed": _packed}
