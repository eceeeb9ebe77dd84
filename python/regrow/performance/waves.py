"""How long a grid of unequal blocks takes: blocks are handed out in order, and those of a multiprocessor share it."""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Run:
    clocks: float
    busy: float  # the mean share of the multiprocessors' time until the last block ends
    copy_bound: float  # the share of the time in which memory sets the pace


def run_waves(tiles, multiprocessors, resident, clocks_per_tile, bytes_per_tile=0.0, bytes_per_clock=float("inf")):
    """Runs blocks of `tiles` [blocks] tiles each, in their order.

    `clocks_per_tile[n - 1]`: of a multiprocessor with n blocks at work, per tile, for n up to `resident`. A tile asks
    memory for `bytes_per_tile`; where all of them together ask for more than `bytes_per_clock`, all slow down alike.
    """
    # Slowing down all alike only stretches time, so blocks are run without memory, and each stretch between two events
    # is lengthened by what memory was asked for in it.
    tiles = [float(t) for t in tiles]
    rates = [0.0] + [1 / clocks for clocks in clocks_per_tile]  # tiles a clock of a multiprocessor with n blocks
    ends = [[] for _ in range(multiprocessors)]  # progress at which its blocks end
    progress, since = [0.0] * multiprocessors, [0.0] * multiprocessors
    upcoming = min(len(tiles), multiprocessors * resident)
    for block in range(upcoming):
        heapq.heappush(ends[block % multiprocessors], tiles[block])
    demand = sum(rates[len(e)] for e in ends)
    events = [(e[0] * len(e) / rates[len(e)], m) for m, e in enumerate(ends) if e]
    heapq.heapify(events)
    times, demands = [0.0], [demand]
    while events:
        now, m = heapq.heappop(events)
        e, before = ends[m], len(ends[m])
        progress[m] += (now - since[m]) * rates[before] / before
        since[m] = now
        while e and e[0] <= progress[m] + 1e-6:
            heapq.heappop(e)
            if upcoming < len(tiles):
                heapq.heappush(e, progress[m] + tiles[upcoming])
                upcoming += 1
        if e:
            heapq.heappush(events, (now + (e[0] - progress[m]) * len(e) / rates[len(e)], m))
        demand += rates[len(e)] - rates[before]
        times.append(now)
        demands.append(demand)
    spans, asked = np.diff(times), np.maximum(np.array(demands[:-1]), 0)
    stretch = np.maximum(1, asked * bytes_per_tile / bytes_per_clock)
    clocks = float((spans * stretch).sum())
    if clocks == 0:
        return Run(0.0, 1.0, 0.0)
    best = rates[resident] * multiprocessors
    return Run(
        clocks, float((spans * asked).sum() / (times[-1] * best)), float((spans * stretch)[stretch > 1].sum() / clocks)
    )
