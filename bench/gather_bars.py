"""Gather and scatter with `out=` against `copy_`, index_select and index_add: rates in bytes read and written."""

import torch
from gather_problems import (
    NUM_ROWS,
    WIDTH,
    gather_problem,
    index_add,
    index_select,
    make_indices,
    replay_gather,
    replay_scatter,
    scatter_problem,
)
from interleaved import interleave, is_tie, ratio
from report import Row

# name -> ours, torch's own form, how to make the operands, (bar, aim) as shares of copy_
OPERATIONS = {
    "gather": (replay_gather, index_select, gather_problem, (0.9, 1.0)),
    "scatter": (replay_scatter, index_add, scatter_problem, (0.6, 0.8)),
}


def run(rounds=5):
    """All rows of gather and scatter."""
    rows = []
    for name, (ours, peer, make_problem, goals) in OPERATIONS.items():
        for workload in make_indices(8):
            src, index, out = make_problem(workload, NUM_ROWS)
            bytes_moved = (NUM_ROWS if name == "gather" else src.size(0)) * WIDTH * 4 + out.nbytes
            source, target = torch.randn(NUM_ROWS, WIDTH), torch.empty(NUM_ROWS, WIDTH)
            times = interleave(
                {
                    "regrow": lambda: ours(src, index, out),  # noqa: B023  (called before the next iteration)
                    "peer": lambda: peer(src, index, out),  # noqa: B023
                    "copy": lambda: target.copy_(source),  # noqa: B023
                },
                4 * rounds,
            )
            share = bytes_moved / (source.nbytes + target.nbytes)
            label = f"{name}, {workload} index, rows of {WIDTH} floats"
            rows += [
                Row(label, "rate", bytes_moved / times["regrow"].median / 1e9, "GB/s"),
                Row(label, "share of copy_'s rate", share * ratio(times, "copy", "regrow"), "", *goals),
                Row(
                    label, f"against {peer.__name__}", ratio(times, "peer", "regrow"), "x", bar=1,
                    tie=is_tie(times, "peer", "regrow"),
                ),
            ]  # fmt: skip
    return rows
