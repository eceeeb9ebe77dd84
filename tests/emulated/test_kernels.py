"""Each kernel: the same bits in every order of threads and copies, and the CPU backend's numbers."""

import numpy as np
import pytest
import torch

import regrow
from accuracy import assert_accurate
from arrays import NAMES, SIXTEEN_BIT, to_numpy, to_torch


def sixteen_bits(shape, dtype, generator):
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=SIXTEEN_BIT.get)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (100, 64, 192), (1, 128, 128)])  # rows beyond m are zeros
def test_tile_matmul(m, n, k, transpose_b, dtype, emulator, every_way, generator):
    a = sixteen_bits((m, k), dtype, generator)
    b = sixteen_bits((n, k) if transpose_b else (k, n), dtype, generator)
    out, report = every_way(
        lambda options: emulator.tile_matmul(to_numpy(a), to_numpy(b), SIXTEEN_BIT[dtype], transpose_b, options)
    )
    b_columns = b.T if transpose_b else b
    assert_accurate(torch.from_numpy(out), a.float() @ b_columns.float(), a.double() @ b_columns.double())
    assert report.bank_conflicts == 0
    tiles = -(-m // 64) * (n // 64) * (k // 64)
    assert report.async_copies == tiles * 2 * 512
    assert report.instructions == {"ldmatrix": tiles * 4 * 4 * 5, "mma": tiles * 4 * 4 * 8}


@pytest.mark.parametrize("transpose_b", [False, True])
def test_each_sync_point_of_tile_matmul_matters(transpose_b, emulator, assert_each_sync_point_matters, generator):
    a, b = (to_numpy(sixteen_bits((64, 192), torch.bfloat16, generator)) for _ in range(2))
    b = b if transpose_b else np.ascontiguousarray(b.T)
    points = assert_each_sync_point_matters(
        lambda options: emulator.tile_matmul(a, b, "bfloat16", transpose_b, options)
    )
    kinds = [point.split()[1] for point in points]
    assert kinds == ["commit_copies", "commit_copies", "wait_copies", "sync_block", "sync_block"]


# Partials, queries, heads, columns: one row; rows of a block left over; columns past one pass of a warp, odd columns.
MERGES = [(1, 1, 1, 8), (3, 5, 2, 64), (2, 3, 3, 132), (4, 2, 2, 7)]


@pytest.mark.parametrize("shape", MERGES, ids=str)
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=NAMES.get)
def test_lse_merge(shape, with_sinks, dtype, emulator, every_way, generator):
    partials, queries, heads, _ = shape
    outs = torch.randn(shape, dtype=dtype, generator=generator)
    lses = 4 * torch.randn((partials, heads, queries), dtype=dtype, generator=generator)
    lses[torch.rand(lses.shape, generator=generator) < 0.3] = -torch.inf
    outs[(lses == -torch.inf).transpose(1, 2)] = torch.nan  # what saw no key may hold anything
    sinks = torch.randn(heads, dtype=dtype, generator=generator) if with_sinks else None

    sinks_array = sinks.numpy() if with_sinks else None
    out, lse, _ = every_way(
        lambda options: emulator.lse_merge(outs.numpy(), lses.numpy(), sinks_array, NAMES[dtype], options)
    )
    wide = [None if x is None else x.double() for x in (outs, lses, sinks)]
    for ours, cpu, oracle in zip((out, lse), regrow.lse_merge(outs, lses, sinks), regrow.lse_merge(*wide), strict=True):
        assert_accurate(torch.from_numpy(ours), cpu, oracle)


def test_lse_merge_keeps_infinities_and_nan(emulator, every_way):
    inf, nan = torch.inf, torch.nan
    lses = torch.tensor([[-inf, inf, nan, 1.0], [-inf, 0.0, 0.0, nan]]).reshape(2, 1, 4)
    outs = torch.ones(2, 4, 1, 8)
    out, lse, _ = every_way(lambda options: emulator.lse_merge(outs.numpy(), lses.numpy(), None, "float32", options))
    cpu_out, cpu_lse = regrow.lse_merge(outs, lses)
    np.testing.assert_array_equal(lse, cpu_lse.numpy())
    np.testing.assert_array_equal(out, cpu_out.numpy())


# Gradients of the merge: one part; several, sinks and dlse or neither; rows that start off 16 bytes.
@pytest.mark.parametrize("shape", MERGES, ids=str)
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=NAMES.get)
def test_lse_merge_backward(shape, with_sinks, dtype, emulator, every_way, generator):
    partials, queries, heads, width = shape
    outs = torch.randn(shape, dtype=dtype, generator=generator)
    lses = 4 * torch.randn((partials, heads, queries), dtype=dtype, generator=generator)
    lses[torch.rand(lses.shape, generator=generator) < 0.3] = -torch.inf
    outs[(lses == -torch.inf).transpose(1, 2)] = torch.nan
    sinks = torch.randn(heads, dtype=dtype, generator=generator) if with_sinks else None
    dout = torch.randn((queries, heads, width), dtype=dtype, generator=generator)
    dlse = torch.randn((heads, queries), dtype=dtype, generator=generator) if with_sinks else None

    def on_cpu(dout, dlse, *parts):
        return torch.ops.regrow.lse_merge_bwd(dout, dlse, *parts, *regrow.lse_merge(*parts))

    arguments = [dout, dlse, outs, lses, sinks, *regrow.lse_merge(outs, lses, sinks)]
    arrays = [None if t is None else t.numpy() for t in arguments]
    *ours, _ = every_way(lambda options: emulator.lse_merge_backward(*arrays, NAMES[dtype], options))
    wide = [None if t is None else t.double() for t in arguments[:5]]
    for kernel, cpu, oracle in zip(ours, on_cpu(*arguments[:5]), on_cpu(*wide), strict=True):
        assert_accurate(torch.from_numpy(kernel), cpu, oracle, per_row=cpu.dim() > 1)


def test_dsinks_of_more_queries_than_threads(emulator, every_way, generator):
    outs, lses = torch.randn((1, 300, 1, 4), generator=generator), torch.randn((1, 1, 300), generator=generator)
    parts = (outs, lses, torch.zeros(1))
    saved = (outs[0], None, *parts, *regrow.lse_merge(*parts))
    arrays = [None if t is None else t.numpy() for t in saved]
    *_, dsinks, _ = every_way(lambda options: emulator.lse_merge_backward(*arrays, "float32", options))
    *_, expected = torch.ops.regrow.lse_merge_bwd(*saved)
    *_, oracle = torch.ops.regrow.lse_merge_bwd(*(None if t is None else t.double() for t in saved))
    assert_accurate(torch.from_numpy(dsinks), expected, oracle)


def test_lse_merge_backward_keeps_infinities_and_nan(emulator, every_way):
    inf, nan = torch.inf, torch.nan
    lses = torch.tensor([[-inf, inf, nan, 1.0], [-inf, 0.0, 0.0, nan]]).reshape(2, 1, 4)
    parts = (torch.ones(2, 4, 1, 8), lses, torch.tensor([-inf]))
    saved = (torch.ones(4, 1, 8), torch.ones(1, 4), *parts, *regrow.lse_merge(*parts))
    *ours, _ = every_way(lambda options: emulator.lse_merge_backward(*(t.numpy() for t in saved), "float32", options))
    for kernel, cpu in zip(ours, torch.ops.regrow.lse_merge_bwd(*saved), strict=True):
        np.testing.assert_array_equal(kernel, cpu.numpy())


def test_merges_of_rows_off_16_bytes(emulator, options, generator):
    def shifted(*shape):
        values = torch.randn(int(np.prod(shape)) + 1, generator=generator)
        return values[1:].view(shape)

    outs, dout, lses = shifted(2, 3, 1, 8), shifted(3, 1, 8), shifted(2, 1, 3)
    out, lse, _ = emulator.lse_merge(outs.numpy(), lses.numpy(), None, "float32", options)
    expected = regrow.lse_merge(outs, lses)
    torch.testing.assert_close((torch.from_numpy(out), torch.from_numpy(lse)), expected)
    saved = (dout, None, outs, lses, None, *expected)
    arrays = [None if t is None else t.numpy() for t in saved]
    *ours, _ = emulator.lse_merge_backward(*arrays, "float32", options)
    torch.testing.assert_close(tuple(map(torch.from_numpy, ours)), torch.ops.regrow.lse_merge_bwd(*saved))


def test_the_barrier_of_dsinks_matters(emulator, assert_each_sync_point_matters):
    row, one = np.ones((1, 1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32)
    arguments = (row[0], None, row, one, one[0, 0], row[0], one[0], "float32")
    assert len(assert_each_sync_point_matters(lambda options: emulator.lse_merge_backward(*arguments, options))) == 1


# Rows of 16-byte units, of 4-byte units, of bytes; rows longer than one pass of a block; rows that are slices.
GATHERS = [
    (torch.bfloat16, 64, 0),
    (torch.float32, 3, 0),
    (torch.uint8, 13, 0),
    (torch.bfloat16, 33, 0),
    (torch.float32, 4100, 0),
    (torch.float32, 8, 4),
]


@pytest.mark.parametrize("dtype, width, gap", GATHERS, ids=str)
def test_replay_gather(dtype, width, gap, emulator, every_way, generator):
    src = torch.randint(0, 100, (11, width + gap), generator=generator).to(dtype)[:, :width]
    index = torch.randint(11, (19,), generator=generator)
    out, _ = every_way(lambda options: emulator.replay_gather(to_numpy(src), index.numpy(), options))
    assert torch.equal(to_torch(out, dtype), regrow.replay_gather(src, index))


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("width, num_rows", [(1, 1), (130, 7), (64, 40)])  # one row of all; several each; rows of none
def test_replay_scatter(dtype, width, num_rows, emulator, every_way, generator):
    src = 50 * torch.randn((24, width), generator=generator).abs()
    src = src.to(dtype)
    index = torch.randint(num_rows, (24,), generator=generator)
    out, _ = every_way(
        lambda options: emulator.replay_scatter(to_numpy(src), index.numpy(), num_rows, NAMES[dtype], options)
    )
    assert torch.equal(to_torch(out, dtype), regrow.replay_scatter(src, index, num_rows))


# On CUDA no index is read on the host: the kernels look for themselves, and say in their own words what is wrong.
@pytest.mark.parametrize("value", [-1, 4])
def test_indices_out_of_range(value, emulator, options):
    def fails(match, run):
        with pytest.raises(emulator.Failure, match=rf"block \d+, thread \d+: .*{match}"):
            run()

    rows, index, zeros = np.zeros((4, 8), np.float32), np.array([0, 3, value, 1]), np.zeros(4, np.int64)
    look = r"look at index.min\(\) and .max\(\)"
    fails(rf"index must be in \[0, rows of src\): {look}", lambda: emulator.replay_gather(rows, index, options))
    fails(
        rf"index must be in \[0, num_rows\): {look}",
        lambda: emulator.replay_scatter(rows, index, 4, "float32", options),
    )

    def pick(row, token):
        emulator.logits(rows[:, :4].copy(), row, token, "float32", 1.0, 0.0, options)

    fails(r"target_row must be in \[0, rows of logits\): look at target_row.min", lambda: pick(index, zeros))
    fails(r"target_token must be in \[0, vocabulary\): look at target_token.min", lambda: pick(zeros, index))
