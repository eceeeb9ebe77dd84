"""Rectangles are parts of the whole: chunks of queries, blocks of keys joined by lse_merge, scattered queries."""

from itertools import pairwise

import pytest
import torch

import regrow
from accuracy import assert_accurate
from attention_cases import make_case, run_regrow
from named_trees import grpo_group
from regrow import reference

TREE = grpo_group(num_responses=8, prompt=150, longest=60)
T = TREE.num_tokens
close = dict(rtol=0, atol=1e-12)


def whole(**options):
    case = make_case(TREE, dtype=torch.float64, **options)
    return case, run_regrow(case)


# One block; cuts within tiles, at a tile and at the fork; a block that is empty.
@pytest.mark.parametrize("cuts", [(0, T), (0, 77, T), (0, 128, 150, 256, T), (0, 60, 60, T)], ids=str)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("sinks", [False, True])
def test_blocks_of_keys_merge_to_the_whole(cuts, window, sinks):
    case, expected = whole(window=window, sinks=sinks)
    q, k, v = (t.detach().requires_grad_() for t in (case.q, case.k, case.v))
    sink = case.sinks.detach().requires_grad_() if sinks else None
    parts = [
        regrow.tree_attention(q, k[a:b], v[a:b], TREE, key_start=a, window=window, partial=True)
        for a, b in pairwise(cuts)
    ]
    out, lse = regrow.lse_merge(torch.stack([o for o, _ in parts]), torch.stack([s for _, s in parts]), sink)
    leaves = {"dq": q, "dk": k, "dv": v} | ({"dsinks": sink} if sinks else {})
    gradients = torch.autograd.grad((out, lse), list(leaves.values()), (case.dout, case.dlse))
    for name, result in {"out": out, "lse": lse.T, **dict(zip(leaves, gradients, strict=True))}.items():
        torch.testing.assert_close(result, expected[name], **close, msg=lambda m, n=name: f"{n}: {m}")


def test_chunks_of_queries_against_their_path():
    """A long prompt cut into chunks: each sees the path before it and itself."""
    case, expected = whole(sinks=True)
    q, k, v = (t.detach().requires_grad_() for t in (case.q, case.k, case.v))
    cuts = (0, 40, 128, 150, 211, T)
    for a, b in pairwise(cuts):
        out, lse = regrow.tree_attention(q[a:b], k[:b], v[:b], TREE, query_start=a, sinks=case.sinks, return_lse=True)
        torch.testing.assert_close(out, expected["out"][a:b], **close)
        torch.autograd.backward((out, lse), (case.dout[a:b], case.dlse[:, a:b]))
    for leaf, name in ((q, "dq"), (k, "dk"), (v, "dv")):
        torch.testing.assert_close(leaf.grad, expected[name], **close)


def test_backward_of_a_block_needs_only_the_global_out_and_lse():
    case, expected = whole(sinks=True)
    common = (TREE.subtree_end, TREE.position_ids)
    dq = torch.zeros_like(case.q)
    for a, b in ((0, 77), (77, T)):
        plan = regrow.plan(TREE, query_heads=4, kv_heads=2, key_start=a, num_keys=b - a)
        saved = (
            case.dout,
            case.dlse,
            case.q,
            case.k[a:b],
            case.v[a:b],
            expected["out"],
            expected["lse"].T.contiguous(),
        )
        options = (*common, plan, None, 0, a, 0.25, None, None, None)
        part_dq, dk, dv, _ = torch.ops.regrow.tree_attention_bwd(*saved, *options)
        dq += part_dq
        torch.testing.assert_close(dk, expected["dk"][a:b], **close)
        torch.testing.assert_close(dv, expected["dv"][a:b], **close)
    torch.testing.assert_close(dq, expected["dq"], **close)


def test_scattered_queries_are_rows_of_the_whole():
    _, expected = whole()
    index = torch.tensor([0, 3, 64, 149, 150, 151, 151, 200, T - 1])
    case = make_case(TREE, dtype=torch.float64, query_index=index)
    full = make_case(TREE, dtype=torch.float64)
    case.q, case.k, case.v = full.q[index], full.k, full.v
    results = run_regrow(case)
    for name in ("out", "lse"):
        torch.testing.assert_close(results[name], expected[name][index], **close)


def test_an_index_that_is_an_interval_is_that_interval():
    interval = run_regrow(make_case(TREE, queries=(30, 200), keys=(10, 220), sinks=True))
    indexed = run_regrow(make_case(TREE, query_index=torch.arange(30, 200), keys=(10, 220), sinks=True))
    for name in interval:
        assert torch.equal(interval[name], indexed[name]), name


def random_parts(count, *, queries=70, heads=3, value_dim=8):
    generator = torch.Generator().manual_seed(count)
    outs = torch.randn(count, queries, heads, value_dim, generator=generator, dtype=torch.float64)
    return outs, torch.randn(count, heads, queries, generator=generator, dtype=torch.float64)


def test_merging_is_associative():
    outs, lses = random_parts(5)
    lses[1] = -torch.inf  # a part that saw nothing
    lses[:, :, 3] = -torch.inf  # a query that no part saw
    sinks = torch.randn(3, dtype=torch.float64)
    expected = regrow.lse_merge(outs, lses, sinks)
    for cut in range(1, 5):
        left, right = regrow.lse_merge(outs[:cut], lses[:cut]), regrow.lse_merge(outs[cut:], lses[cut:])
        pair = [torch.stack(x) for x in zip(left, right, strict=True)]
        torch.testing.assert_close(regrow.lse_merge(*pair, sinks), expected, **close)


# None, one, and enough for several tasks of 64 queries.
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_merge_against_the_oracle(isa, count, sinks, dtype):
    outs, lses = random_parts(count, queries=200)
    sink = torch.randn(3, dtype=torch.float64) if sinks else None
    out, lse = regrow.lse_merge(outs.to(dtype), lses.to(dtype), sink)
    assert out.dtype == lse.dtype == dtype
    if count + sinks == 0:
        assert (out == 0).all() and (lse == -torch.inf).all()
        return

    def merged(dtype):
        if count == 0:
            return torch.zeros_like(out, dtype=dtype), sink[:, None].expand_as(lse).to(dtype)
        return reference.lse_merge(outs.to(dtype), lses.to(dtype), None if sink is None else sink.to(dtype))

    for ours, plain, oracle, what in zip((out, lse), merged(dtype), merged(torch.float64), ("out", "lse"), strict=True):
        assert_accurate(ours, plain, oracle, what=what)


def test_merge_takes_any_strides():
    outs, lses = random_parts(3)
    expected = regrow.lse_merge(outs, lses)
    strided = outs.transpose(0, 3).contiguous().transpose(0, 3), lses.transpose(0, 2).contiguous().transpose(0, 2)
    assert all(torch.equal(a, b) for a, b in zip(regrow.lse_merge(*strided), expected, strict=True))
