"""Gather and scatter of rows of 576 floats into existing memory, against a copy and torch's own forms.

The bars are shares of `copy_`'s bandwidth, bytes read plus bytes written, in the same process (`bandwidth_gb_s`).
"""

import pytest
import torch

import regrow

NUM_ROWS, WIDTH = 65536, 576


def make_indices(num_rows):
    generator = torch.Generator().manual_seed(0)
    return {
        "permuted": (torch.randperm(num_rows, generator=generator), num_rows),
        "random": (torch.randint(num_rows // 2, (num_rows,), generator=generator), num_rows // 2),
        "runs": (torch.arange(num_rows) % (num_rows // 8), num_rows // 8),  # eight branches over one trunk
    }


def copy(src, index, out):
    out.copy_(src[: out.size(0)])


def index_select(src, index, out):
    torch.index_select(src, 0, index, out=out)


def index_add(src, index, out):
    out.zero_().index_add_(0, index, src)


def replay_gather(src, index, out):
    regrow.replay_gather(src, index, out=out)


def replay_scatter(src, index, out):
    regrow.replay_scatter(src, index, out.size(0), out=out)


def gather_problem(workload, num_rows):
    index, num_src_rows = make_indices(num_rows)[workload]
    return torch.randn(num_src_rows, WIDTH), index, torch.empty(num_rows, WIDTH)


def scatter_problem(workload, num_rows):
    index, num_out_rows = make_indices(num_rows)[workload]
    return torch.randn(num_rows, WIDTH), index, torch.empty(num_out_rows, WIDTH)


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
