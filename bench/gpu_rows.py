"""Gather and scatter on a GPU, rows of hidden states, as shares of a copy; against torch's own forms."""

import torch
from gather_problems import index_add, index_select, make_indices, replay_gather, replay_scatter
from gpu_timing import Ceilings, num_buffers, timer_for
from gpu_work import gather_work, scatter_work
from interleaved import interleave, is_tie, ratio
from report import Row

DTYPE, WIDTH, NUM_ROWS = torch.bfloat16, 4096, 65536
GOAL = 0.9


def check(device, num_rows=512, width=72):
    """Against fp64 sums, one after another; torch's forms need no proof."""
    for index, num_out_rows in make_indices(num_rows).values():
        src = torch.randn(num_rows, width, device=device).to(DTYPE)
        out, index = torch.empty(num_rows, width, dtype=DTYPE, device=device), index.to(device)
        replay_gather(src, index, out)
        assert torch.equal(out, src[index])
        out = torch.empty(num_out_rows, width, dtype=DTYPE, device=device)
        replay_scatter(src, index, out)
        expected = torch.zeros(num_out_rows, width, dtype=torch.float64).index_add_(0, index.cpu(), src.double().cpu())
        torch.testing.assert_close(out.double().cpu(), expected, rtol=2**-8, atol=1e-5)


def problem(name, index, num_out_rows, num_rows, width, device):
    """src, index and out of one set."""
    sizes = (num_out_rows, num_rows) if name == "gather" else (num_rows, num_out_rows)
    src, out = (torch.randn(size, width, device=device).to(DTYPE) for size in sizes)
    return src, index.to(device), out


OPERATIONS = {"gather": (replay_gather, index_select), "scatter": (replay_scatter, index_add)}


def run(device, rounds, num_rows=NUM_ROWS, width=WIDTH, ceilings=None):
    """All rows of gather and scatter."""
    check(device)
    ceilings = ceilings or Ceilings(device)
    rows = []
    for name, (ours, peer) in OPERATIONS.items():
        for kind, (index, num_out_rows) in make_indices(num_rows).items():
            row_bytes = width * DTYPE.itemsize
            if name == "gather":
                work = gather_work(num_rows, row_bytes)
            else:
                work = scatter_work(num_rows, num_out_rows, row_bytes)
            sets = [
                problem(name, index, num_out_rows, num_rows, width, device)
                for _ in range(num_buffers(device, work.bytes))
            ]
            implementations = {
                label: [lambda f=function, operands=operands: f(*operands) for operands in sets]
                for label, function in (("regrow", ours), ("peer", peer))
            }
            times = interleave(implementations | ceilings.implementations, rounds, timer_for(device))
            rows += rows_of(f"{name}, {kind} index, rows of {width:,} bf16", peer.__name__, times, work, ceilings)
    return rows


def rows_of(label, peer, times, work, ceilings):
    """Rows of measured `times`: pure arithmetic."""
    _, copy = ceilings.rates(times)
    moved = work.bytes / times["regrow"].median
    return [
        Row(label, "regrow", times["regrow"].median * 1e6, "us", note=f"± {times['regrow'].spread:.1%}", lower=True),
        Row(label, "rate", moved / 1e9, "GB/s", note=f"copy {copy / 1e9:.0f}"),
        Row(label, "share of the copy", moved / copy, "", bar=GOAL),
        Row(label, f"against {peer}", ratio(times, "peer", "regrow"), "x", tie=is_tie(times, "peer", "regrow")),
    ]
