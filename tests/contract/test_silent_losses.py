"""What looks as if it worked and would not: second derivatives, options with gradients, writes that autograd misses."""

import pytest
import torch

import regrow

TREE = regrow.PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])


def make(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def attention(x):
    return regrow.tree_attention(x, x, x, TREE)


def merge(x):
    return regrow.lse_merge(torch.stack([x, x]), x.new_zeros(2, x.size(1), x.size(0)))[0]


def row_logprobs(x):
    index = torch.arange(x.size(0))
    return regrow.row_logprobs(x[:, 0], x[:, 0], index, index)[0]


def tree_logprobs(x):
    return regrow.tree_logprobs(x[:, 0], x.new_ones(10, x.size(2)), TREE)


@pytest.mark.parametrize("function", [attention, merge, row_logprobs, tree_logprobs])
def test_second_derivatives_are_refused(function):
    x = make(5, 2, 8)
    (gradient,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not twice differentiable"):
        gradient.pow(2).sum().backward()


def test_options_that_want_gradients_are_refused():
    x, option = make(5, 2, 8), torch.tensor(1.0, requires_grad=True)
    for call in (
        lambda: regrow.tree_attention(x, x, x, TREE, scale=option),
        lambda: regrow.tree_attention(x, x, x, TREE, softcap=option),
        lambda: regrow.tree_logprobs(x[:, 0], x[:, 1].repeat(2, 1), TREE, temperature=option),
    ):
        with pytest.raises(ValueError, match="is a tensor that requires a gradient, and gets none"):
            call()


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_out_counts_as_a_write(name):
    saved, factor = torch.ones(2, 3), torch.full((2, 3), 2.0, requires_grad=True)
    product = (factor * saved).sum()
    rows = torch.full((2, 3), 9.0)
    if name == "gather":
        regrow.replay_gather(rows, torch.tensor([0, 1]), out=saved)
    else:
        regrow.replay_scatter(rows, torch.tensor([0, 1]), 2, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_accumulators_count_as_written():
    x, dk, dv = make(5, 2, 8), torch.zeros(5, 2, 8), torch.zeros(5, 2, 8)
    before = dk._version
    regrow.tree_attention(x, x.detach(), x.detach(), TREE, dk_accum=dk, dv_accum=dv).sum().backward()
    assert dk._version > before and dv._version > 0


@pytest.mark.parametrize("stray", ["src", "index"])
def test_devices_of_gather_must_agree(stray):
    arguments = {"src": torch.ones(3, 2), "index": torch.tensor([0])}
    arguments[stray] = arguments[stray].to("meta")
    with pytest.raises(ValueError, match="move them to one device"):
        regrow.replay_gather(**arguments)
    with pytest.raises(ValueError, match="move them to one device"):
        regrow.replay_scatter(**arguments, num_rows=3)


def test_devices_of_logprobs_must_agree():
    hidden, index = torch.ones(3, 2), torch.arange(3)
    with pytest.raises(ValueError, match="on meta"):
        torch.ops.regrow.row_logprobs(hidden, hidden.to("meta"), index, index, 1.0, None)
    with pytest.raises(ValueError, match="on meta"):
        regrow.tree_logprobs(torch.ones(5, 2), torch.ones(10, 2), TREE.to("meta"))
