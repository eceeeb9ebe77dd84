"""Gather and scatter as benches run them: the indices, the operands, our form and torch's, into existing memory."""

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
