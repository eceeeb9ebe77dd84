"""Gather and scatter of rows of 576 floats into existing memory, against a copy and torch's own forms.

The bars are shares of `copy_`'s bandwidth, bytes read plus bytes written, in the same process (`bandwidth_gb_s`).
"""

import pytest
import torch
from gather_problems import (
    NUM_ROWS,
    copy,
    gather_problem,
    index_add,
    index_select,
    replay_gather,
    replay_scatter,
    scatter_problem,
)


def run(benchmark, group, function, problem, num_bytes):
    benchmark.group = group
    benchmark.pedantic(function, args=problem, rounds=30, warmup_rounds=3)
    if benchmark.stats:
        benchmark.extra_info["bandwidth_gb_s"] = num_bytes / benchmark.stats["median"] / 1e9


@pytest.mark.parametrize("workload", ["permuted", "random", "runs"])
@pytest.mark.parametrize("implementation", [replay_gather, index_select, copy], ids=lambda f: f.__name__)
def test_gather(benchmark, workload, implementation):
    if implementation is not copy:
        src, index, out = gather_problem(workload, 4096)
        implementation(src, index, out)
        assert torch.equal(out, src[index])
    src, index, out = gather_problem(workload, NUM_ROWS)
    if implementation is copy:
        src = torch.randn_like(out)
    run(benchmark, f"gather {workload}", implementation, (src, index, out), 2 * out.nbytes)


@pytest.mark.parametrize("workload", ["permuted", "random", "runs"])
@pytest.mark.parametrize("implementation", [replay_scatter, index_add, copy], ids=lambda f: f.__name__)
def test_scatter(benchmark, workload, implementation):
    if implementation is not copy:
        src, index, out = scatter_problem(workload, 4096)
        implementation(src, index, out)
        expected = torch.zeros_like(out, dtype=torch.float64).index_add_(0, index, src.double())
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    src, index, out = scatter_problem(workload, NUM_ROWS)
    if implementation is copy:
        out = torch.empty_like(src)
    run(benchmark, f"scatter {workload}", implementation, (src, index, out), src.nbytes + out.nbytes)
