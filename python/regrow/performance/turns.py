"""Blocks of the backward that take turns at their query tiles (csrc/platform/turns.h): who waits for whom, how long."""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """Clocks of a block at one query tile, and at its item's start and end."""

    work: float  # until it asks for its turn
    poll: float  # from its turn's being passed to its knowing that
    add: float
    hand_on: float  # from the last addition to the next turn's being passed
    start: float = 0.0
    key_add: float = 0.0  # of dk and dv, in turns as well

    @property
    def turn(self):
        return self.poll + self.add + self.hand_on


@dataclass(frozen=True)
class Turns:
    clocks: float
    busy: float  # the mean share of the multiprocessors' time in which a block runs, waiting or not
    waiting: float  # the share of the blocks' time in which they wait for a turn


def run_turns(items, heads, multiprocessors, step, ordered=True):
    """Runs `items`, (key tile, its query tiles) each, in the order of their tickets, once for each of `heads` KV heads.

    One block a multiprocessor. A query tile's turns go in the order of the tickets that visit it, and so do a key
    tile's; not `ordered`, nobody waits. A block waits for lower tickets only, so that one after the other can be run
    to its end.
    """
    free = [0.0] * multiprocessors
    passed = [np.zeros(1 + max((int(q.max()) for _, q in items if len(q)), default=0)) for _ in range(heads)]
    keys_passed = [{} for _ in range(heads)]
    own = step.work + step.turn
    busy = waiting = 0.0
    places = np.arange(1, 1 + max((len(queries) for _, queries in items), default=0))
    for key_tile, queries in items:
        for head in range(heads):
            begin = free[0]
            now, n = begin + step.start, len(queries)
            if ordered and n:
                # end[i] = max(end[i - 1] + work, passed[i]) + turn: without the steps' own clocks, a running maximum.
                at = places[:n] * own
                ends = np.maximum.accumulate(np.maximum(passed[head][queries] + step.turn - at, now)) + at
                passed[head][queries] = ends
                waiting += ends[-1] - now - n * own
                now = ends[-1]
            else:
                now += n * own
            asks = now
            if step.key_add:
                now = max(now, keys_passed[head].get(key_tile, 0.0))
                waiting += now - asks
                now += step.poll + step.key_add + step.hand_on
                keys_passed[head][key_tile] = now
            busy += now - begin
            heapq.heapreplace(free, now)
    clocks = max(free, default=0.0)
    if not clocks:
        return Turns(0.0, 1.0, 0.0)
    return Turns(float(clocks), float(busy / clocks / multiprocessors), max(0.0, float(waiting / busy)))
