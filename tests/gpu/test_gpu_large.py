"""More than 2^31 elements in one tensor: offsets have 64 bits wherever they are formed. The last rows are checked."""

import pytest
import torch

import regrow
from accuracy import assert_accurate
from attention_cases import Case
from device_cases import assert_forward, assert_gradients, attend, forward_case, plan_of
from regrow import reference

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
GIB = 2**30


@pytest.fixture
def elements(size):
    return size(2**31 + 2**20, 2**16)


def random(*shape, dtype, device):
    return torch.empty(shape, dtype=dtype, device=device).normal_(generator=torch.Generator(device).manual_seed(0))


# The last tokens of two branches against a context of two million tokens.
def test_keys(device, elements, needs_memory):
    heads, dim, queries = 8, 128, 32
    needs_memory(2 * 2 * elements + 20 * GIB)  # K and V; the oracle's fp64 keys, values and scores of one head
    rows = -(-elements // (heads * dim))
    tree = regrow.PrefixTree.from_nodes([-1, 0, 0], [rows - queries, queries // 2, queries // 2]).to(device)
    k, v = (random(rows, heads, dim, dtype=BF16, device=device) for _ in range(2))
    q = random(queries, 2 * heads, dim, dtype=BF16, device=device)
    assert k.numel() >= elements
    assert_forward(forward_case(tree, q, k, v, query_start=rows - queries))


# Few queries and keys whose rows lie so far apart that the last is beyond 2^31 elements.
def test_rows_far_apart(device, elements, needs_memory):
    needs_memory(3 * 2 * elements + GIB)
    tokens, heads, dim = 64, 2, 64
    tree = regrow.PrefixTree.from_nodes([-1, 0, 0], [40, 12, 12]).to(device)
    stride = (elements // (tokens - 1) // 8 + 1) * 8
    shape, strides = (tokens, heads, dim), (stride, dim, 1)
    apart = [torch.empty(tokens * stride, dtype=BF16, device=device).as_strided(shape, strides) for _ in range(3)]
    near = [random(tokens, heads, dim, dtype=BF16, device=device) for _ in range(3)]
    for far, values in zip(apart, near, strict=True):
        far.copy_(values)
    far, expected = attend(forward_case(tree, *apart)), attend(forward_case(tree, *near))
    assert all(torch.equal(far[name], expected[name]) for name in expected)
    assert_forward(forward_case(tree, *near), far)


def test_queries(device, elements, needs_memory):
    """More than 2^31 elements of q and out: many queries with a short path each."""
    heads, dim, length = 8, 128, 16
    needs_memory(2 * 2 * elements + 2 * elements // 4 + 4 * GIB)
    nodes = -(-elements // (heads * dim * length))
    tree = regrow.PrefixTree.from_nodes([-1] * nodes, [length] * nodes).to(device)
    q = random(tree.num_tokens, heads, dim, dtype=BF16, device=device)
    k, v = (random(tree.num_tokens, 1, dim, dtype=BF16, device=device) for _ in range(2))
    ours = attend(forward_case(tree, q, k, v))
    for first in (0, tree.num_tokens // 2 // length * length, tree.num_tokens - length):
        rows = slice(first, first + length)
        small = regrow.PrefixTree.from_nodes([-1], [length]).to(device)
        part = {"out": ours["out"][rows], "lse": ours["lse"][rows]}
        assert_forward(forward_case(small, q[rows], k[rows], v[rows]), part)


def backward(tree, q, k, v, dout, out, lse, query_start=0, key_start=0):
    """dq, dk, dv of these keys alone, from the results over all of them."""
    plan = plan_of(
        tree, q, k, v, query_start=query_start, num_queries=q.size(0), key_start=key_start, num_keys=k.size(0)
    )
    places = (tree.subtree_end, tree.position_ids, plan, None, query_start, key_start, q.size(2) ** -0.5)
    return torch.ops.regrow.tree_attention_bwd(dout, None, q, k, v, out, lse, *places, None, None, None)[:3]


# dk and dv beyond 2^31 elements: the last keys, and those in the middle, have the gradients of a call with them alone.
def test_key_gradients(device, elements, needs_memory):
    heads, dim, queries = 8, 128, 32
    needs_memory(2 * (2 + 4 + 2) * elements + 4 * GIB)  # k and v, fp32 sums, gradients
    rows = -(-elements // (heads * dim) // 128) * 128 + 32
    tree = regrow.PrefixTree.from_nodes([-1, 0, 0], [rows - queries, queries // 2, queries // 2]).to(device)
    k, v = (random(rows, heads, dim, dtype=BF16, device=device) for _ in range(2))
    q, dout = (random(queries, 2 * heads, dim, dtype=BF16, device=device) for _ in range(2))
    start = rows - queries
    out, lse = regrow.tree_attention(q, k, v, tree, query_start=start, return_lse=True)
    _, dk, dv = backward(tree, q, k, v, dout, out, lse, query_start=start)
    # Whole tiles of 128 keys.
    for first in (0, rows // 256 * 128, rows // 128 * 128 - 128):
        part = slice(first, min(first + 256, rows))
        _, *expected = backward(tree, q, k[part], v[part], dout, out, lse, start, first)
        for ours, alone in zip((dk, dv), expected, strict=True):
            torch.testing.assert_close(ours[part], alone, rtol=2**-7, atol=0)
            assert alone.any()


# q and dq beyond 2^31 elements: many queries with a short path each.
def test_query_gradients(device, elements, needs_memory):
    heads, dim, length = 8, 128, 16
    needs_memory((2 + 2 + 4 + 2) * elements + 6 * GIB)  # q, out, fp32 dq, dq; and what is small
    nodes = -(-elements // (heads * dim * length))
    tree = regrow.PrefixTree.from_nodes([-1] * nodes, [length] * nodes).to(device)
    q = random(tree.num_tokens, heads, dim, dtype=BF16, device=device)
    k, v = (random(tree.num_tokens, 1, dim, dtype=BF16, device=device) for _ in range(2))
    out, lse = regrow.tree_attention(q, k, v, tree, return_lse=True)
    gradients = backward(tree, q, k, v, q, out, lse)  # dout is q: any values do
    small = regrow.PrefixTree.from_nodes([-1], [length]).to(device)
    for first in (0, tree.num_tokens // 2 // length * length, tree.num_tokens - length):
        rows = slice(first, first + length)
        part = Case(
            tree=small, q=q[rows], k=k[rows], v=v[rows], dout=q[rows], dlse=torch.zeros(heads, length, device=device),
            options={"key_start": 0},
        )  # fmt: skip
        results = {"out": out[rows], "lse": lse[:, rows].T}
        assert_gradients(part, results | {f"d{n}": g[rows] for n, g in zip("qkv", gradients, strict=True)})


def test_replay_gather(device, elements, needs_memory):
    needs_memory(3 * elements + GIB)
    src = torch.empty(-(-elements // 4096), 4096, dtype=torch.uint8, device=device).random_(0, 256)
    index = torch.arange(src.size(0), device=device).flip(0)
    out = regrow.replay_gather(src, index)
    assert torch.equal(out[-1], src[0]) and torch.equal(out[0], src[-1])
    assert torch.equal(out, src.flip(0))


def test_replay_scatter(device, elements, needs_memory):
    needs_memory(3 * elements + GIB)
    src = torch.empty(-(-elements // 4096), 4096, dtype=torch.uint8, device=device).random_(0, 256)
    index = torch.arange(src.size(0), device=device).flip(0)
    out = regrow.replay_scatter(src, index, src.size(0))
    assert torch.equal(out[-1], src[0]) and torch.equal(out[0], src[-1])
    assert torch.equal(out, src.flip(0))


def test_lse_merge(device, elements, needs_memory):
    """More than 2^31 elements of outs, then of out."""
    needs_memory(3 * 4 * elements + 2 * GIB)
    heads, width = 8, 128
    for partials, total in ((4, elements), (2, 2 * elements)):
        queries = -(-total // (partials * heads * width))
        outs = random(partials, queries, heads, width, dtype=torch.float32, device=device)
        lses = random(partials, heads, queries, dtype=torch.float32, device=device)
        out, lse = regrow.lse_merge(outs, lses)
        for rows in (slice(0, 4), slice(queries - 4, queries)):
            parts = outs[:, rows], lses[:, :, rows]
            plain, oracle = reference.lse_merge(*parts), reference.lse_merge(*(part.double() for part in parts))
            for ours, x, y in zip((out[rows], lse[:, rows]), plain, oracle, strict=True):
                assert_accurate(ours, x, y)
        del outs, out


def test_logits(device, elements, needs_memory):
    needs_memory(2 * elements + 2 * GIB)
    vocabulary = 32_000
    logits = random(-(-elements // vocabulary), vocabulary, dtype=BF16, device=device)
    last = torch.tensor([0, logits.size(0) - 1], device=device)
    token = torch.tensor([5, vocabulary - 1], device=device)
    lse, entropy = torch.ops.regrow.logits_row_stats(logits, 1.0, None)
    logp = torch.ops.regrow.logits_pick(logits, lse, last, token, 1.0, None)
    rows = logits[last].double()
    expected = torch.log_softmax(rows, -1)
    torch.testing.assert_close(lse[last], rows.logsumexp(-1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy[last].double(), -(expected.exp() * expected).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logp.double(), expected[[0, 1], token], rtol=1e-5, atol=1e-5)
