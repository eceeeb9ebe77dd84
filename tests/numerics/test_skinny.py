"""Linear layers of few rows: against fp64, and their bits."""

import pytest
import torch
from torch.nn.functional import linear

from accuracy import assert_accurate
from regrow.skinny import skinny_linear

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# Rows below, at and beyond what a block holds; outputs and widths that are no multiples of vectors, blocks and tasks.
ROWS = (1, 2, 3, 6, 7, 12, 13, 25, 32)
SHAPES = [(1, 1), (3, 7), (5, 33), (66, 64), (97, 576), (259, 515)]  # [outputs, width]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(isa, shape, dtype, generator):
    weight = torch.randn(shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    for rows in ROWS:
        x = torch.randn(rows, shape[1], generator=generator).to(dtype)
        for b in (None, bias):
            truth = linear(x.double(), weight.double(), None if b is None else b.double())
            # Sums of n terms err like sqrt(n) steps in either order.
            rounding = torch.full_like(truth, 4 * torch.finfo(torch.float32).eps * shape[1] ** 0.5)
            if dtype == torch.float64:
                rounding = torch.zeros_like(truth)
            assert_accurate(skinny_linear(x, weight, b), linear(x, weight, b), truth, rounding=rounding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_beside_any_others(isa, num_threads, dtype, generator):
    x, weight = (torch.randn(n, 600, generator=generator).to(dtype) for n in (32, 2001))
    num_threads(1)
    whole = skinny_linear(x, weight)
    for threads in (1, 2, 3):
        num_threads(threads)
        assert all(skinny_linear(x[:rows], weight).equal(whole[:rows]) for rows in ROWS)
        assert skinny_linear(x[5:6], weight).equal(whole[5:6])


def test_shapes_and_strides(generator):
    weight, bias = torch.randn(10, 16, generator=generator), torch.randn(10, generator=generator)
    x = torch.randn(2, 3, 16, generator=generator)
    expected = skinny_linear(x.view(6, 16), weight, bias)
    assert skinny_linear(x, weight, bias).equal(expected.view(2, 3, 10))
    assert skinny_linear(x[0, 0], weight, bias).equal(expected[0])
    assert skinny_linear(x.transpose(0, 1), weight, bias).equal(expected.view(2, 3, 10).transpose(0, 1))
    wide = torch.randn(6, 40, generator=generator)
    wide[:, 5:21] = x.view(6, 16)
    assert skinny_linear(wide[:, 5:21], weight, bias).equal(expected)
    assert skinny_linear(x, weight.T.contiguous().T, bias).equal(expected.view(2, 3, 10))
    assert skinny_linear(x[:0], weight, bias).shape == (0, 3, 10)
    assert skinny_linear(x, weight[:0]).shape == (2, 3, 0)
    assert skinny_linear(x[..., :0], weight[:, :0], bias).equal(bias.expand(2, 3, 10))


def test_values_that_are_no_numbers_stay_in_their_row_and_output():
    x, weight = torch.ones(3, 20), torch.ones(4, 20)
    x[1, 19], weight[2, 0] = torch.nan, torch.inf
    out = skinny_linear(x, weight)
    assert out[1].isnan().all() and out[[0, 2]][:, 2].isposinf().all()
    assert out[[0, 2]][:, [0, 1, 3]].eq(20).all()


X, WEIGHT, BIAS = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((X[:, :2], WEIGHT), r"input must be \[\.\.\., K\] and weight \[N, K\], got \[2, 2\] and \[4, 3\]"),
        ((X[0, 0], WEIGHT), r"input must be \[\.\.\., K\]"),
        ((X, WEIGHT[0]), r"and weight \[N, K\], got \[2, 3\] and \[3\]"),
        ((X.double(), WEIGHT), "must have one dtype, got input in float64 and weight in float32"),
        ((X, WEIGHT, BIAS.double()), "input, weight and bias must have one dtype"),
        ((X.int(), WEIGHT.int()), "weight must be float64, float32, bfloat16 or float16"),
        ((X, WEIGHT, BIAS[:3]), r"bias must have shape \[4\], got \[3\]"),
        ((X, WEIGHT, torch.ones(8)[::2]), "bias must be contiguous"),
    ],
)
def test_messages(arguments, message):
    with pytest.raises(ValueError, match=message):
        skinny_linear(*arguments)
