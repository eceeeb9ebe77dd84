"""opcheck on the device: schemas, fakes and formulas of the attention ops against what they do there."""

import pytest
import torch

from attention_cases import make_case
from device_cases import place, plan_of
from named_trees import conversation

pytestmark = pytest.mark.gpu

ops = torch.ops.regrow
# Plain; everything at once; scattered queries; a partial result.
CASES = {
    "plain": {},
    "options": {"queries": (10, 60), "window": 9, "softcap": 2.0, "sinks": True},
    "indexed": {"query_index": torch.tensor([3, 9, 40])},
    "partial": {"keys": (5, 30), "partial": True},
}


def forward_arguments(name, device, requires_grad):
    """(case, arguments of tree_attention_fwd)"""
    case = make_case(conversation(), dtype=torch.bfloat16, head_dim=64, value_dim=64, **CASES[name])
    case = place(case, device)
    options, tree = case.options, case.tree
    index, start = options.get("query_index"), options.get("query_start", 0)
    q, k, v = (x.requires_grad_(requires_grad) for x in (case.q, case.k, case.v))
    rectangle = {"query_index": index} if index is not None else {"query_start": start, "num_queries": q.size(0)}
    plan = plan_of(
        tree, q, k, v, window=options.get("window"), key_start=options["key_start"], num_keys=k.size(0), **rectangle
    )
    sinks = None if case.sinks is None else case.sinks.float().requires_grad_(requires_grad)
    return case, (
        q, k, v, tree.subtree_end, tree.position_ids, plan, index, start, options["key_start"], 64**-0.5,
        options.get("window"), options.get("softcap"), sinks, case.partial,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward(name, device):
    _, arguments = forward_arguments(name, device, requires_grad=True)
    torch.library.opcheck(ops.tree_attention_fwd.default, arguments)


@pytest.mark.parametrize("name", CASES)
def test_backward(name, device):
    case, arguments = forward_arguments(name, device, requires_grad=False)
    q, k, v, *options, _partial = arguments
    out, lse = ops.tree_attention_fwd(*arguments)
    for dlse in (None, case.dlse.float()):
        saved = (case.dout.to(out.dtype), dlse, q, k, v, out, lse, *options)
        torch.library.opcheck(ops.tree_attention_bwd.default, saved)
        buffers = [torch.zeros(t.shape, device=device) for t in (q, k, v)]
        torch.library.opcheck(ops.tree_attention_bwd_accum.default, (*saved, *buffers))
        torch.library.opcheck(ops.tree_attention_bwd_accum.default, (*saved, None, None, None))
