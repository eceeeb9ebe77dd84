"""Inputs and gradients of any strides with a contiguous last dimension."""

import pytest
import torch

import regrow
from attention_cases import assert_same, make_case, run_regrow
from named_trees import conversation

TREE = conversation()


def transposed(x):
    """[H, T, D] in memory, as attention modules hold it."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def sliced(x):
    """A part of every dimension of something larger, which holds NaN elsewhere."""
    large = x.new_full([size + 5 for size in x.shape], torch.nan)
    part = large[2:-3, 1:-4, 3:-2]
    part.copy_(x)
    return part


def packed(x):
    """One of several projections that one matmul made."""
    return torch.stack([x, torch.full_like(x, torch.nan)], 1).flatten(1, 2)[:, : x.size(1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [transposed, sliced, packed])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_inputs(name, layout, dtype):
    case = make_case(TREE, dtype=dtype, sinks=True)
    expected = run_regrow(case)
    laid_out = layout(getattr(case, name))
    assert not laid_out.is_contiguous() and torch.equal(laid_out, getattr(case, name))
    arguments = {"q": case.q, "k": case.k, "v": case.v} | {name: laid_out}
    leaves = {name: t.requires_grad_() for name, t in arguments.items()}
    out, lse = regrow.tree_attention(**leaves, tree=TREE, sinks=case.sinks.float(), return_lse=True)
    gradients = torch.autograd.grad((out, lse), list(leaves.values()), (case.dout, case.dlse.to(lse.dtype)))
    assert_same({"out": out, "lse": lse.T} | {f"d{n}": g for n, g in zip(leaves, gradients, strict=True)},
                {name: result for name, result in expected.items() if name != "dsinks"})  # fmt: skip


def test_heads_and_rows_that_share_memory():
    case = make_case(TREE, heads=(4, 4))
    one_head, one_row = case.k[:, :1], case.v[:1]
    expected = regrow.tree_attention(case.q, one_head.repeat(1, 4, 1), one_row.repeat(TREE.num_tokens, 1, 1), TREE)
    shared = regrow.tree_attention(case.q, one_head.expand(-1, 4, -1), one_row.expand(TREE.num_tokens, -1, -1), TREE)
    assert torch.equal(shared, expected)


# What sum() hands back; a transposed result's; every other of something; one whose last dimension is not contiguous.
@pytest.mark.parametrize("layout", [
    lambda x: x.new_ones(()).expand_as(x),
    transposed,
    lambda x: torch.stack([x, x], 1).flatten(0, 1)[::2],
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
], ids=["expanded scalar", "transposed", "every other row", "strided last dimension"])  # fmt: skip
def test_gradients_of_out(layout):
    case = make_case(TREE)
    case.dout = layout(case.dout)
    actual = run_regrow(case)
    case.dout = case.dout.contiguous()
    assert_same(actual, run_regrow(case))


def test_the_gradient_of_lse():
    case = make_case(TREE)
    case.dlse = case.dlse.T.contiguous().T
    actual = run_regrow(case)
    case.dlse = case.dlse.contiguous()
    assert_same(actual, run_regrow(case))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_strided_last_dimension_is_an_error(name):
    case = make_case(TREE)
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    tensors[name] = tensors[name].transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match=f"{name} must be contiguous in its last dimension, got stride"):
        regrow.tree_attention(**tensors, tree=TREE)
