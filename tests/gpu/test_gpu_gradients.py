"""Gradients of tree attention at real sizes against the fp64 oracle, on the device."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import regrow
from attention_cases import make_case, run_regrow
from device_cases import Dense, assert_gradients, place, plan_of, same_bits
from device_forms import FORMS, OPTIONS, drafts, each_half, group_tree
from named_trees import named_trees

pytestmark = pytest.mark.gpu

INTO = ("dk", "dv")


# Every configuration: a power of two, one padded to the next, V narrower than K, the largest.
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
# One head, groups that fill a tile of 64 rows evenly and not, and one of two units that a block walks in turn.
@pytest.mark.parametrize("group", [1, 3, 8, 96])
@each_half
def test_configurations(dtype, group, dims, device, size):
    heads = (group, 1) if group > 8 else (2 * group, 2)
    tree = group_tree(size if group <= 8 else lambda real, small: size(real // 8, small))
    case = make_case(tree, dtype=dtype, heads=heads, head_dim=dims[0], value_dim=dims[1])
    assert_gradients(place(case, device))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
@each_half
def test_rectangles(dtype, form, options, device, size):
    tree = group_tree(size)
    chosen = {**OPTIONS[options], **FORMS[form](tree)}
    if chosen.get("partial"):
        chosen["sinks"] = False  # they join at the merge
    case = place(make_case(tree, dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128, **chosen), device)
    ours = assert_gradients(case)
    unseen = ours["lse"] == -torch.inf
    assert not ours["dq"][unseen].any(), "a row that sees nothing has a gradient"


@pytest.mark.parametrize("name", named_trees())
@each_half
def test_named_trees(dtype, name, device):
    assert_gradients(place(make_case(named_trees()[name], dtype=dtype, head_dim=64, value_dim=64, sinks=True), device))


@each_half
def test_scattered_drafts(dtype, device, size):
    tree, queries = drafts(size)
    case = make_case(tree, dtype=dtype, heads=(32, 8), head_dim=128, value_dim=128, query_index=queries, sinks=True)
    assert_gradients(place(case, device))


# A chain as long as many key tiles: every query tile sums its dq over all of them, in turn.
@each_half
def test_chain(dtype, device, size):
    tree = regrow.PrefixTree.from_nodes([-1], [size(8192, 300)])
    assert_gradients(place(make_case(tree, dtype=dtype, heads=(4, 2), head_dim=128, value_dim=128), device))


# Blocks of keys merged are the whole: the gradient goes through lse, and the sink counts once.
@each_half
def test_merged_blocks(dtype, device, size):
    tree = group_tree(size)
    case = place(make_case(tree, dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128, sinks=True), device)
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v, case.sinks.float())]
    q, k, v, sinks = leaves
    parts = [
        regrow.tree_attention(q, k[a:b], v[a:b], case.tree, key_start=a, partial=True)
        for a, b in pairwise([0, 1, size(1500, 20), size(5000, 60), tree.num_tokens])
    ]
    out, lse = regrow.lse_merge(*map(torch.stack, zip(*parts, strict=True)), sinks)
    gradients = torch.autograd.grad((out, lse), leaves, (case.dout.float(), case.dlse.float()))
    names = ("dq", "dk", "dv", "dsinks")
    results = {"out": out.detach().to(dtype), "lse": lse.detach().T} | dict(zip(names, gradients, strict=True))
    assert_gradients(case, results)


# Accumulators are added to, never set: two ranges of queries into one pair of buffers are the whole.
@each_half
def test_accumulators(dtype, device, size):
    case = place(make_case(group_tree(size), dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128), device)
    # Halves, which fp32 sums of this size hold exactly enough.
    start = [torch.full(x.shape, 0.5, device=device) for x in (case.k, case.v)]
    into = [x.clone() for x in start]
    parts, num_tokens = [], case.tree.num_tokens
    for a, b in pairwise([0, size(1000, 30), size(4500, 50), num_tokens]):
        part = replace(
            case, q=case.q[a:b], dout=case.dout[a:b], dlse=case.dlse[:, a:b], options={"query_start": a, "key_start": 0}
        )
        parts.append(run_into(part, *into))
    ours = {name: torch.cat([part[name] for part in parts]) for name in ("out", "lse", "dq")}
    ours |= {name: (x - y).to(dtype) for name, x, y in zip(INTO, into, start, strict=True)}
    assert_gradients(case, ours)


def run_into(case, dk, dv):
    """out, lse and dq; the gradients of k and v are added into dk and dv."""
    q, k, v = (x.detach().requires_grad_() for x in (case.q, case.k, case.v))
    out, lse = regrow.tree_attention(q, k, v, case.tree, dk_accum=dk, dv_accum=dv, return_lse=True, **case.options)
    (dq,) = torch.autograd.grad((out, lse), [q], (case.dout, case.dlse.float()))
    return {"out": out.detach(), "lse": lse.detach().T, "dq": dq}


# What the buffers held comes first: from zeros it is what the op returns, and twice is twice that.
@each_half
def test_accumulators_twice(dtype, device, size):
    case = place(make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=64, value_dim=64), device)
    once, twice = ([torch.zeros(x.shape, device=device) for x in (case.k, case.v)] for _ in range(2))
    for buffers, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            run_into(case, *buffers)
    whole = run_regrow(case)
    assert same_bits([x.to(dtype) for x in once], [whole[name] for name in INTO])
    for x, y in zip(twice, once, strict=True):
        torch.testing.assert_close(x, 2 * y, rtol=1e-5, atol=1e-5 * float(y.abs().max()))


@each_half
def test_one_result_has_a_gradient(dtype, device, size):
    """The other's is None, which is as good as zeros."""
    case = place(make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=64, value_dim=64), device)
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    results = dict(zip(("dout", "dlse"), regrow.tree_attention(*leaves, case.tree, return_lse=True), strict=True))
    for name, result in results.items():
        gradient = getattr(case, name).to(result.dtype)
        alone = torch.autograd.grad(result, leaves, gradient, retain_graph=True, materialize_grads=True)
        other = next(x for x in results if x != name)
        zeros = torch.zeros_like(results[other])
        both = torch.autograd.grad((result, results[other]), leaves, (gradient, zeros), retain_graph=True)
        for x, y in zip(alone, both, strict=True):
            assert torch.equal(x, y)


# A gradient comes as autograd makes it: expanded, transposed, or of rows that are not 16 bytes apart.
@each_half
def test_layouts_of_the_gradient(dtype, device, size):
    case = place(make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=64, value_dim=64), device)
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    out = regrow.tree_attention(*leaves, case.tree)
    odd = torch.empty(*out.shape[:2], out.size(2) + 1, dtype=dtype, device=device)[..., :-1]
    one = torch.ones((), dtype=dtype, device=device).expand(out.shape)
    transposed = case.dout.transpose(0, 1).contiguous().transpose(0, 1)
    for gradient in (one, transposed, odd.copy_(case.dout)):
        ours, expected = (torch.autograd.grad(out, leaves, g, retain_graph=True) for g in (gradient, gradient.clone()))
        assert same_bits(ours, expected)


@each_half
def test_unseen_keys_may_hold_nan(dtype, device, size):
    case = make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=128, value_dim=128, queries=(0, 30))
    case.k[30:], case.v[30:] = torch.nan, torch.nan
    ours = assert_gradients(place(case, device))
    assert not any(result.isnan().any() for result in ours.values())
    assert not ours["dk"][30:].any() and not ours["dv"][30:].any()


# Views with gaps between rows and heads, as a fused projection gives them.
@each_half
def test_strides(dtype, device, size):
    case = place(make_case(group_tree(size), dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128), device)
    fused = torch.cat([case.q, case.k, case.v], 1)
    expected = run_regrow(case)
    ours = run_regrow(replace(case, q=fused[:, :8], k=fused[:, 8:10], v=fused[:, 10:]))
    assert same_bits(list(ours.values()), list(expected.values()))


# Weights are recomputed from lse: large scores must not overflow, in fp16 neither.
@each_half
def test_large_scores(dtype, device, size):
    case = make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=128, value_dim=128, magnitude=4.0)
    assert_gradients(place(case, device))


# gradcheck's question, asked of 16-bit kernels: a step along a direction changes the result as the gradient says. The
# oracle takes the step, in fp64, so the difference has no noise of its own.
@pytest.mark.parametrize("options", OPTIONS)
@each_half
def test_directional_derivatives(dtype, options, device, size):
    case = make_case(group_tree(size), dtype=dtype, heads=(2, 1), head_dim=64, value_dim=64, **OPTIONS[options])
    case = place(case, device)
    ours = run_regrow(case)
    generator = torch.Generator().manual_seed(9)
    for name in ("q", "k", "v"):
        x = getattr(case, name).double()
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(device)
        step = 1e-4
        change = sum(sign * objective(case, name, x + sign * step * direction) for sign in (1, -1)) / (2 * step)
        gradient = ours[f"d{name}"].double()
        along = float((gradient * direction).sum())
        # Rounded once more than exact: by half an ulp of each value, in random directions.
        noise = 16 * torch.finfo(dtype).eps * float(gradient.norm())
        assert abs(along - float(change)) <= noise, (
            f"d{name}: {along} along a direction, the result changes by {change}"
        )


@torch.no_grad()
def objective(case, name, values):
    """dout . out + dlse . lse of the oracle in fp64."""
    tensors = {x: getattr(case, x).double() for x in ("q", "k", "v")} | {name: values}
    dense = Dense(replace(case, **tensors), gradients=False)
    out, lse = dense(torch.float64, "out"), dense(torch.float64, "lse")
    return (case.dout.double() * out).sum() + (case.dlse.double().T * lse).sum()


# One plan for a tree, a device and a shape: made at the first forward, asked for again by later ones and each backward.
def test_plans_are_kept_per_device(device, size):
    tree = group_tree(size)
    case = place(make_case(tree, dtype=torch.bfloat16, heads=(4, 2), head_dim=64, value_dim=64), device)
    assert not case.tree.plans
    for _ in range(2):
        run_regrow(case)
    (plan,) = case.tree.plans.values()
    assert plan_of(case.tree, case.q, case.k, case.v) is plan and plan.device == case.q.device
    if device.type == "cuda":
        assert not tree.plans and not case.tree.to("cpu").plans
        elsewhere = plan_of(tree, case.q, case.k, case.v)
        with pytest.raises(ValueError, match="device"):
            regrow.tree_attention(case.q, case.k, case.v, case.tree, plan=elsewhere)
        wider = plan_of(case.tree, *(x.repeat(1, 1, 4) for x in (case.q, case.k, case.v)))
        assert wider is not plan and len(case.tree.plans) == 2  # another head dim has other tiles
