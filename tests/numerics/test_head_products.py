"""The head's products against fp64, and their bits."""

import pytest
import torch

from accuracy import assert_accurate

ops = torch.ops.regrow
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# (rows, vocabulary, width): single numbers, odd and less than a vector, across each block: 128 of rows and of the
# vocabulary, 256 and 320 of a width.
SHAPES = [(1, 1, 1), (3, 5, 7), (7, 100, 24), (130, 300, 576), (300, 129, 257), (64, 513, 515), (5, 33, 8)]


def products(dlogits, hidden, weight):
    dtype = dlogits.dtype
    logits = torch.full(dlogits.shape, torch.nan, dtype=dtype)
    ops.head_logits_out(hidden, weight, logits)
    dhidden = torch.full(hidden.shape, torch.nan, dtype=dtype)
    dweight = torch.ones(weight.shape, dtype=dtype)  # added to
    few_rows = torch.full(dlogits.shape, torch.nan, dtype=dtype)
    ops.head_logits_out(hidden, weight, few_rows, few_rows=True)
    ops.head_logits_bwd(dlogits, hidden, weight, dhidden, dweight)
    return logits, few_rows, dhidden, dweight - 1


def make(shape, dtype, generator):
    rows, vocabulary, width = shape
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    hidden, weight = (torch.randn(n, width, generator=generator).to(dtype) for n in (rows, vocabulary))
    # Values that every dtype holds: bf16 rounds gradients for its products, as plain torch does.
    dlogits = torch.randn(rows, vocabulary, generator=generator).to(torch.bfloat16).to(accumulation)
    return dlogits, hidden, weight


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(isa, shape, dtype, generator):
    dlogits, hidden, weight = make(shape, dtype, generator)

    def torch_products(kind):
        d, h, w = (x.to(kind) for x in (dlogits, hidden, weight))
        return h @ w.T, h @ w.T, d @ w, d.T @ h

    plain = torch_products(dlogits.dtype)
    for ours, at_dtype, truth in zip(
        products(dlogits, hidden, weight), plain, torch_products(torch.float64), strict=True
    ):
        # One was added to and taken from dweight, and sums of n terms err like sqrt(n) steps in either order.
        rounding = torch.full_like(truth, 4 * torch.finfo(dlogits.dtype).eps * max(shape) ** 0.5)
        assert_accurate(ours, at_dtype, truth, rounding=rounding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_for_any_number_of_threads(num_threads, dtype, generator):
    dlogits, hidden, weight = make((300, 700, 330), dtype, generator)
    results = []
    for threads in (1, 2, 3):
        num_threads(threads)
        results.append(products(dlogits, hidden, weight))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_strided_operands(generator):
    dlogits, hidden, weight = make((9, 40, 24), torch.float32, generator)
    wide = torch.randn(9, 30, generator=generator)
    wide[:, 3:27] = hidden
    for other in (wide[:, 3:27], hidden.T.contiguous().T):
        for a, b in zip(products(dlogits, hidden, weight), products(dlogits, other, weight), strict=True):
            assert torch.equal(a, b)
