"""Interleaved runs of one update in three ways on the same data: memory, time and distance to it in fp64."""

import copy
import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch

from regrow.demo.updates import Update, packed_update, relative_l2, replicated_update
from regrow.live_bytes import peak_bytes

ROUNDS = 2
TIME_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Comparison:
    """By name, "replicated", "packed" (one pass) and "replayed": updates of the last round, seconds of each round.

    relative_l2: the gradient's distance to the replicated one in fp64, the largest of all rounds; peak_bytes: live
    bytes beyond the model's weights, gradients included.
    """

    updates: dict[str, Update]
    relative_l2: dict[str, float]
    seconds: dict[str, list[float]]
    peak_bytes: dict[str, int]

    def speedup(self, name):
        """The median of the ratios round by round, so that a machine whose speed drifts is fair to all."""
        return statistics.median(
            replicated / other for replicated, other in zip(self.seconds["replicated"], self.seconds[name], strict=True)
        )


def compare(
    model, batch, chunk_tokens, *, rounds=ROUNDS, time_limit_seconds=TIME_LIMIT_SECONDS,
    on_step=lambda label, count: None,
):  # fmt: skip
    """Runs all three in turn, `rounds` times after one that counts bytes and warms up; before them the replicated one
    in fp64, which shows what each rounds.

    chunk_tokens: of the replayed update. Beyond the first, no timed round starts that would likely end after
    `time_limit_seconds`. `on_step(label, count)` is called after `count` more sequences of a replicated update, and
    after each other update. Leaves the model with "regrow" attention.
    """
    runs = {
        "replicated": lambda: replicated_update(model, batch, partial(on_step, "replicated")),
        "packed": lambda: packed_update(model, batch),
        "replayed": lambda: packed_update(model, batch, chunk_tokens),
    }
    exact = exact_gradients(model, batch, partial(on_step, "fp64"))
    seconds, peaks, distances = {name: [] for name in runs}, {}, {name: [] for name in runs}
    started = time.perf_counter()
    for done in range(rounds + 1):
        elapsed = time.perf_counter() - started
        if done >= 2 and elapsed * (done + 1) / done > time_limit_seconds:
            break
        updates = {}
        for name, run in runs.items():
            model.set_attn_implementation("sdpa" if name == "replicated" else "regrow")
            began = time.perf_counter()
            if done == 0:
                updates[name], peaks[name] = peak_bytes(run, model.device)
            else:
                updates[name] = run()
                seconds[name].append(time.perf_counter() - began)
            distances[name].append(relative_l2(updates[name].gradients, exact))
            if name != "replicated":
                on_step(name, 1)
    largest = {name: torch.tensor(found).max().item() for name, found in distances.items()}  # nan, if there is one
    return Comparison(updates, largest, seconds, peaks)


def exact_gradients(model, batch, on_sequences):
    """The replicated update's gradients, computed in fp64."""
    model.set_attn_implementation("sdpa")
    return replicated_update(copy.deepcopy(model).double(), batch, on_sequences).gradients
