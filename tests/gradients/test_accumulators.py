"""dk_accum and dv_accum: backward adds into the caller's buffers, and k and v get nothing."""

import pytest
import torch

import regrow
from attention_cases import make_case, run_regrow
from named_trees import conversation

TREE = conversation()
CLOSE = dict(rtol=0, atol=1e-12)  # fp64, another order of the last addition


def call(case, dk_accum, dv_accum):
    q, k, v = (t.detach().requires_grad_() for t in (case.q, case.k, case.v))
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    sinks = case.sinks.detach().to(wide, copy=True).requires_grad_()
    results = regrow.tree_attention(
        q, k, v, TREE, sinks=sinks, dk_accum=dk_accum, dv_accum=dv_accum, return_lse=True, **case.options
    )
    return (q, k, v, sinks), results


# All keys, and an interval: every row of the buffers belongs to a key of the call.
RECTANGLES = pytest.mark.parametrize("rectangle", [{}, {"queries": (20, 70), "keys": (5, 61)}], ids=["all", "interval"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@RECTANGLES
def test_buffers_of_zeros_hold_the_gradients_before_rounding(rectangle, dtype):
    case = make_case(TREE, dtype=dtype, sinks=True, **rectangle)
    expected = run_regrow(case)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    dk_accum, dv_accum = (torch.zeros(like.shape, dtype=wide) for like in (case.k, case.v))
    (q, k, v, sinks), (out, lse) = call(case, dk_accum, dv_accum)
    torch.autograd.backward((out, lse), (case.dout, case.dlse.to(wide)))
    assert k.grad is None and v.grad is None
    assert torch.equal(out, expected["out"]) and torch.equal(lse.T, expected["lse"])
    assert torch.equal(q.grad, expected["dq"]) and torch.equal(sinks.grad, expected["dsinks"])
    assert torch.equal(dk_accum.to(dtype), expected["dk"]) and torch.equal(dv_accum.to(dtype), expected["dv"])


@RECTANGLES
def test_backward_adds_and_never_zeroes(rectangle):
    case = make_case(TREE, dtype=torch.float64, sinks=True, **rectangle)
    expected = run_regrow(case)
    dk_accum, dv_accum = torch.randn_like(case.k), torch.randn_like(case.v)
    before = dk_accum.clone(), dv_accum.clone()
    for times in (1, 2):
        _, results = call(case, dk_accum, dv_accum)
        torch.autograd.backward(results, (case.dout, case.dlse))
        torch.testing.assert_close(dk_accum, before[0] + times * expected["dk"], **CLOSE)
        torch.testing.assert_close(dv_accum, before[1] + times * expected["dv"], **CLOSE)


def test_one_graph_run_backward_twice_adds_twice():
    case = make_case(TREE, dtype=torch.float64, sinks=True)
    expected = run_regrow(case)
    dk_accum, dv_accum = torch.zeros_like(case.k), torch.zeros_like(case.v)
    _, results = call(case, dk_accum, dv_accum)
    for _ in range(2):
        torch.autograd.backward(results, (case.dout, case.dlse), retain_graph=True)
    torch.testing.assert_close(dk_accum, 2 * expected["dk"], **CLOSE)
    torch.testing.assert_close(dv_accum, 2 * expected["dv"], **CLOSE)


def test_buffers_written_between_forward_and_backward_are_fine():
    case = make_case(TREE, dtype=torch.float64, sinks=True)
    dk_accum, dv_accum = torch.zeros_like(case.k), torch.zeros_like(case.v)
    _, results = call(case, dk_accum, dv_accum)
    dk_accum += 1  # what another call's backward does
    torch.autograd.backward(results, (case.dout, case.dlse))
    torch.testing.assert_close(dk_accum, 1 + run_regrow(case)["dk"], **CLOSE)


def test_raw_op_skips_what_has_no_buffer():
    case = make_case(TREE, dtype=torch.float64)
    plan = regrow.plan(TREE, query_heads=4, kv_heads=2)
    options = (TREE.subtree_end, TREE.position_ids, plan, None, 0, 0, 0.25, None, None, None)
    out, lse = torch.ops.regrow.tree_attention_fwd(case.q, case.k, case.v, *options, False)
    saved = (case.dout, case.dlse, case.q, case.k, case.v, out, lse)
    dq, dk, dv, _ = torch.ops.regrow.tree_attention_bwd(*saved, *options)
    for kept in ({"dq_accum"}, {"dk_accum", "dv_accum"}, {"dq_accum", "dk_accum", "dv_accum"}, set()):
        buffers = {
            name: torch.ones_like(like) if name in kept else None
            for name, like in (("dq_accum", case.q), ("dk_accum", case.k), ("dv_accum", case.v))
        }
        torch.ops.regrow.tree_attention_bwd_accum(*saved, *options, *buffers.values())
        for buffer, gradient in zip(buffers.values(), (dq, dk, dv), strict=True):
            assert buffer is None or torch.allclose(buffer, gradient + 1, rtol=0, atol=1e-13)
