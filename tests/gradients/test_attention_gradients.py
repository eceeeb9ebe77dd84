"""gradcheck in fp64 through the CPU kernels, with the gradient of lse, and of merged results."""

import pytest
import torch

import regrow
from attention_cases import make_case
from regrow import PrefixTree

TREE = PrefixTree.from_nodes([-1, 0, 0, 1, -1], [3, 2, 1, 2, 2])
SCATTERED = torch.tensor([2, 2, 5, 9])


def check(function, *inputs):
    leaves = [t.detach().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=False)


# Each option alone and all together; rectangles with queries that see nothing and keys that nobody sees.
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 2},
        {"softcap": 0.7},
        {"sinks": True},
        {"scale": -0.4, "window": 3, "softcap": 2.0, "sinks": True},
        {"queries": (4, 10), "keys": (1, 7), "sinks": True},
        {"query_index": SCATTERED, "keys": (2, 10), "window": 3},
        {"queries": (4, 10), "keys": (1, 7), "partial": True},
    ],
    ids=str,
)
def test_gradcheck(options):
    case = make_case(TREE, dtype=torch.float64, heads=(2, 1), head_dim=8, value_dim=8, **options)
    sinks = [case.sinks] if case.sinks is not None else []

    def attend(q, k, v, *sinks):
        more = {"sinks": sinks[0]} if sinks else {}
        options = {"return_lse": True, "partial": case.partial, **more, **case.options}
        out, lse = regrow.tree_attention(q, k, v, TREE, **options)
        return out, lse.masked_fill(lse.isneginf(), 0)  # differences of infinities are no derivatives

    check(attend, case.q, case.k, case.v, *sinks)


@pytest.mark.parametrize("only", ["out", "lse"])
def test_gradcheck_of_one_result(only):
    case = make_case(TREE, dtype=torch.float64, heads=(2, 1), head_dim=8, value_dim=8)
    pick = {"out": 0, "lse": 1}[only]
    check(lambda q, k, v: regrow.tree_attention(q, k, v, TREE, return_lse=True)[pick], case.q, case.k, case.v)


@pytest.mark.parametrize("sinks", [False, True])
def test_gradcheck_of_lse_merge(sinks):
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    inputs = [random(3, 4, 2, 5), random(3, 2, 4), *([random(2)] if sinks else [])]
    check(regrow.lse_merge, *inputs)


def test_a_part_that_saw_nothing_gets_no_gradient():
    outs, lses = torch.randn(2, 3, 2, 4).double(), torch.randn(2, 2, 3).double()
    lses[1] = -torch.inf
    outs[1] = torch.nan
    outs.requires_grad_(), lses.requires_grad_()
    out, lse = regrow.lse_merge(outs, lses)
    torch.testing.assert_close((out, lse), (outs[0], lses[0]))
    douts, dlses = torch.autograd.grad((out, lse), (outs, lses), (torch.ones_like(out), torch.ones_like(lse)))
    assert (douts[0] == 1).all() and (dlses[0] == 1).all()
    assert (douts[1] == 0).all() and (dlses[1] == 0).all()
