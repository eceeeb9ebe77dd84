"""lse_merge, gather, scatter and log-probs at real sizes against the fp64 oracle, on the device."""

import pytest
import torch

import regrow
from accuracy import assert_accurate
from regrow import reference

pytestmark = pytest.mark.gpu

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def random(*shape, dtype=torch.float32, device, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)


# Rows of 16 bytes together, and not; one partial, many.
@pytest.mark.parametrize("partials, width", [(1, 128), (7, 64), (16, 128), (3, 33)])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lse_merge(dtype, with_sinks, partials, width, device, size):
    queries, heads = size(2048, 20), 8
    outs = random(partials, queries, heads, width, dtype=dtype, device=device)
    lses = 4 * random(partials, heads, queries, dtype=dtype, device=device, seed=1)
    lses[random(*lses.shape, device=device, seed=2) < -0.5] = -torch.inf
    outs[(lses == -torch.inf).transpose(1, 2)] = torch.nan  # what saw no key may hold anything
    sinks = random(heads, dtype=dtype, device=device, seed=3) if with_sinks else None
    ours = regrow.lse_merge(outs, lses, sinks)
    clean = outs.nan_to_num()
    plain = reference.lse_merge(clean, lses, sinks)
    oracle = reference.lse_merge(clean.double(), lses.double(), None if sinks is None else sinks.double())
    for name, x, y, z in zip(("out", "lse"), ours, plain, oracle, strict=True):
        assert_accurate(x, y, z, what=name)


@pytest.mark.parametrize("partials, width", [(1, 128), (7, 64), (3, 33)])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lse_merge_gradients(dtype, with_sinks, partials, width, device, size):
    queries, heads = size(2048, 20), 8
    outs = random(partials, queries, heads, width, dtype=dtype, device=device)
    lses = 4 * random(partials, heads, queries, dtype=dtype, device=device, seed=1)
    lses[1:][random(*lses[1:].shape, device=device, seed=2) < -0.5] = -torch.inf  # each row sees something
    sinks = random(heads, dtype=dtype, device=device, seed=3) if with_sinks else None
    dout = random(queries, heads, width, dtype=dtype, device=device, seed=4)
    dlse = random(heads, queries, dtype=dtype, device=device, seed=5)

    def differentiate(merge, kind):
        leaves = [t.to(kind).requires_grad_() for t in (outs, lses, sinks) if t is not None]
        return torch.autograd.grad(merge(*leaves), leaves, (dout.to(kind), dlse.to(kind)))

    ours, plain = differentiate(regrow.lse_merge, dtype), differentiate(reference.lse_merge, dtype)
    for name, x, y, z in zip(
        ("douts", "dlses", "dsinks"), ours, plain, differentiate(reference.lse_merge, torch.float64), strict=False
    ):
        assert_accurate(x, y, z, what=name)


def index_of(kind, rows, device):
    generator = torch.Generator().manual_seed(0)
    kinds = {
        "permuted": lambda: torch.randperm(rows, generator=generator),
        "random": lambda: torch.randint(rows // 2, (rows,), generator=generator),
        "runs": lambda: torch.arange(rows) % (rows // 8),
        "one row": lambda: torch.full((rows,), rows // 3),
    }
    return kinds[kind]().to(device)


KINDS = ["permuted", "random", "runs", "one row"]


# Rows of 16-byte units, of 4-byte units, of bytes; a single value; longer than a block's pass.
ROWS = [
    (torch.bfloat16, 576),
    (torch.float32, 3),
    (torch.bfloat16, 33),
    (torch.uint8, 13),
    (torch.int64, 1),
    (torch.float32, 4100),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, width", ROWS, ids=str)
def test_replay_gather(kind, dtype, width, device, size):
    rows = size(50_000, 64)
    src = (50 * random(rows, width, device=device)).to(dtype)
    index = index_of(kind, rows, device)
    expected = src[index]
    assert torch.equal(regrow.replay_gather(src, index), expected)
    out = torch.empty_like(expected)
    assert regrow.replay_gather(src, index, out=out) is out and torch.equal(out, expected)


# In the order of i, as the contract says: bit by bit what one addition after another gives on the host.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [576, 3, 33])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_replay_scatter(kind, width, dtype, device, size):
    rows = size(20_000, 64)
    src = random(rows, width, dtype=torch.float64, device=device).to(dtype)
    index = index_of(kind, rows, device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = reference.replay_scatter(src.cpu().to(wide), index.cpu(), rows).to(dtype)
    assert torch.equal(regrow.replay_scatter(src, index, rows).cpu(), expected)
    out = torch.full_like(src, torch.nan)
    regrow.replay_scatter(src, index, rows, out=out)
    assert torch.equal(out.cpu(), expected)


def test_integers_wrap(device, size):
    rows = size(10_000, 50)
    src = (1000 * random(rows, 24, device=device)).to(torch.int8)
    index = index_of("random", rows, device)
    expected = reference.replay_scatter(src.cpu().long(), index.cpu(), rows).to(torch.int8)
    assert torch.equal(regrow.replay_scatter(src, index, rows).cpu(), expected)


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("vocabulary", [151_936, 32_003])  # rows of 16 bytes together, and not
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_row_logprobs(dtype, vocabulary, softcap, device, size):
    rows, width, vocabulary = size(300, 9), size(1024, 24), size(vocabulary, vocabulary % 1000)
    generator = torch.Generator().manual_seed(0)
    hidden = random(rows, width, dtype=torch.float64, device=device).to(dtype)
    weight = random(vocabulary, width, dtype=torch.float64, device=device, seed=1).mul(width**-0.5).to(dtype)
    row = torch.randint(rows, (2 * rows,), generator=generator).to(device)
    token = torch.randint(vocabulary, (2 * rows,), generator=generator).to(device)
    options = {"temperature": 0.7, "softcap": softcap}
    numbers = [random(n, dtype=torch.float64, device=device, seed=n) for n in (2 * rows, rows)]

    def differentiate(function, kind):
        leaves = [x.to(kind).requires_grad_() for x in (hidden, weight)]
        results = function(*leaves, row, token, **options)
        gradients = torch.autograd.grad(results, leaves, [g.to(x.dtype) for g, x in zip(numbers, results, strict=True)])
        return *(x.detach() for x in results), *gradients

    results = [differentiate(regrow.row_logprobs, dtype), differentiate(reference.row_logprobs, dtype)]
    results.append(differentiate(reference.row_logprobs, torch.float64))
    for name, x, y, z in zip(("logp", "entropy", "dhidden", "dweight"), *results, strict=True):
        assert_accurate(x, y, z, what=name)
