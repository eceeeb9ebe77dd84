"""replay_gather and replay_scatter against plain torch, bit for bit where no rounding is involved."""

import pytest
import torch

import regrow
from accuracy import assert_accurate
from regrow import reference

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

# Row shapes: elements, nothing, less than a vector, odd tails, the hidden size of SmolLM2, more than one column block.
ROW_SHAPES = [(), (0,), (1,), (3,), (2, 5), (33,), (576,), (3, 8, 64), (2500,)]


def random_rows(shape, dtype, generator):
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(0, 127, shape, dtype=dtype, generator=generator)


def poisoned(shape, dtype):
    if dtype.is_floating_point:
        return torch.full(shape, torch.nan, dtype=dtype)
    return torch.full(shape, 77, dtype=dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128])
@pytest.mark.parametrize("row", ROW_SHAPES, ids=str)
def test_gather_copies_rows(isa, dtype, row, generator):
    src = random_rows((11, *row), dtype, generator)
    index = torch.randint(11, (37,), generator=generator)
    assert torch.equal(regrow.replay_gather(src, index), src[index])
    out = poisoned((37, *row), dtype) if dtype != torch.bool and not dtype.is_complex else src.new_zeros(37, *row)
    assert regrow.replay_gather(src, index, out=out) is out
    assert torch.equal(out, src[index])


# Large outputs are streamed past the caches: rows that start at any offset of a line, a row cut into several tasks.
@pytest.mark.parametrize("rows, width, offset", [(4000, 1153, 0), (9000, 576, 1), (5, 1 << 20, 3), (20000, 65, 5)])
def test_large_gather_and_scatter(isa, rows, width, offset, generator):
    src = torch.randint(-8, 8, (rows, width), generator=generator).float()
    index = torch.randint(rows, (rows,), generator=generator)
    memory = torch.full((rows * width + 16,), torch.nan)
    out = memory[offset : offset + rows * width].view(rows, width)
    assert torch.equal(regrow.replay_gather(src, index, out=out), src[index])
    memory.fill_(torch.nan)
    expected = torch.zeros(rows, width).index_add_(0, index, src)  # small integers: exact in any order
    assert torch.equal(regrow.replay_scatter(src, index, rows, out=out), expected)
    assert memory[:offset].isnan().all() and memory[offset + rows * width :].isnan().all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("row", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 7, 90])  # every source in one row; several each; rows without any
def test_scatter_sums_rows(isa, dtype, row, num_rows, generator):
    src = random_rows((64, *row), dtype, generator)
    index = torch.randint(num_rows, (64,), generator=generator)
    out = regrow.replay_scatter(src, index, num_rows, out=poisoned((num_rows, *row), dtype))
    assert torch.equal(out, regrow.replay_scatter(src, index, num_rows))
    plain = reference.replay_scatter(src, index, num_rows)
    assert_accurate(out, plain, reference.replay_scatter(src.double(), index, num_rows), per_row=True)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("row", [(), (5,), (300,)], ids=str)
def test_scatter_of_integers_wraps(isa, dtype, row, generator):
    src = random_rows((50, *row), dtype, generator)
    index = torch.randint(6, (50,), generator=generator)
    assert torch.equal(regrow.replay_scatter(src, index, 6), reference.replay_scatter(src, index, 6))


def test_scatter_sums_in_fp32_in_the_order_of_the_sources(isa):
    # In bf16 each 1 would be lost beside 256; and 1e8 - 1e8 + 1 is 1 in one order only.
    src = torch.tensor([256.0, 1, 1, 1, 1], dtype=torch.bfloat16)[:, None].expand(-1, 40)
    assert (regrow.replay_scatter(src, torch.zeros(5, dtype=torch.int64), 1) == 260).all()
    src = torch.tensor([1e8, -1e8, 1.0])[:, None].expand(-1, 40)
    assert (regrow.replay_scatter(src, torch.zeros(3, dtype=torch.int64), 1) == 1).all()


def test_values_that_are_not_numbers_stay_in_their_row(isa):
    src = torch.zeros(4, 33)
    src[1, 2], src[2, 3] = torch.nan, torch.inf
    out = regrow.replay_scatter(src, torch.tensor([0, 1, 2, 1]), 4)
    assert out.isnan().nonzero().tolist() == [[1, 2]] and out.isinf().nonzero().tolist() == [[2, 3]]
    assert (out[3] == 0).all()


STRIDED = {
    "slice of wider rows": lambda x: x[:, :20],
    "every other row": lambda x: x[::2],
    "transposed": lambda x: x[:, :30].T,
    "one row expanded": lambda x: x[:1].expand(30, -1),
    "inner slice": lambda x: x.view(30, 6, 10)[:, 1:4],
    "inner transposed": lambda x: x.view(30, 6, 10).transpose(1, 2),
    "every other column": lambda x: x[:, ::2],
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED.keys())
def test_strided_sources(view, generator):
    src = view(torch.randint(-8, 8, (30, 60), generator=generator).float())
    index = torch.randint(src.size(0), (2 * src.size(0),), generator=generator)
    assert torch.equal(regrow.replay_gather(src, index[::2]), src[index[::2]])
    destination = index[: src.size(0)]
    expected = reference.replay_scatter(src, destination, src.size(0))
    assert torch.equal(regrow.replay_scatter(src, destination, src.size(0)), expected)


def test_nothing_to_do():
    empty = torch.empty(0, dtype=torch.int64)
    assert regrow.replay_gather(torch.empty(5, 3), empty).shape == (0, 3)
    assert regrow.replay_gather(torch.empty(0, 3), empty).shape == (0, 3)
    assert torch.equal(regrow.replay_scatter(torch.empty(0, 3), empty, 4), torch.zeros(4, 3))
    assert regrow.replay_scatter(torch.empty(0, 3), empty, 0).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [3, 5000])  # lopsided and even
def test_same_bits_for_any_number_of_threads(num_threads, dtype, num_rows, generator):
    src = torch.randn(6000, 577, generator=generator).to(dtype)
    index = torch.randint(num_rows, (6000,), generator=generator)
    results = []
    for threads in (1, 2, 3):
        num_threads(threads)
        results.append((regrow.replay_gather(src, index), regrow.replay_scatter(src, index, num_rows)))
    for gathered, scattered in results[1:]:
        assert torch.equal(gathered, results[0][0]) and torch.equal(scattered, results[0][1])
