"""Forward attention on any device, by the accuracy rule: the cases of tests/attention_cases.py, moved and compared.

The oracle runs on the device too, a head at a time, so that its dense scores fit at real sizes.
"""

from dataclasses import replace

import torch

import regrow
from accuracy import assert_accurate
from attention_cases import worst_plain
from regrow import reference


def place(case, device):
    """The same case with every tensor on `device`."""
    tensors = {name: value for name, value in vars(case).items() if isinstance(value, torch.Tensor)}
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in case.options.items()}
    moved = {name: value.to(device) for name, value in tensors.items()}
    return replace(case, tree=case.tree.to(device), options=options, **moved)


def plan_of(tree, q, k, v, **rectangle):
    """regrow.plan for these tensors: the one place that says what a plan is made from."""
    head_dim = max(q.size(2), v.size(2))
    return regrow.plan(tree, query_heads=q.size(1), kv_heads=k.size(1), head_dim=head_dim, **rectangle)


@torch.no_grad()
def attend(case, **more):
    """{"out": [Tq,Hq,Dv], "lse": [Tq,Hq]} of regrow."""
    sinks = None if case.sinks is None else case.sinks.float()
    options = {"return_lse": True, "partial": case.partial, **case.options, **more}
    out, lse = regrow.tree_attention(case.q, case.k, case.v, case.tree, sinks=sinks, **options)
    return {"out": out, "lse": lse.T}


@torch.no_grad()
def dense(case, dtype):
    """The same of the oracle in any dtype."""
    group, tree = case.q.size(1) // case.k.size(1), case.tree
    outs, lses = [], []
    for head in range(case.q.size(1)):
        of_query, of_key = slice(head, head + 1), slice(head // group, head // group + 1)
        out, lse = reference.tree_attention(
            case.q[:, of_query].to(dtype), case.k[:, of_key].to(dtype), case.v[:, of_key].to(dtype), tree.subtree_end,
            tree.position_ids, sinks=None if case.sinks is None else case.sinks[of_query].to(dtype), **case.options,
        )  # fmt: skip
        outs.append(out)
        lses.append(lse)
    return {"out": torch.cat(outs, 1), "lse": torch.cat(lses).T}


def assert_forward(case, ours=None):
    """out and lse by the accuracy rule (docs/design.md), per row too; returns ours. Cheapest terms first."""
    ours = attend(case) if ours is None else ours
    oracle, plain = dense(case, torch.float64), None
    for name, result in ours.items():
        if _passes(result, oracle[name], oracle[name], name):
            continue
        plain = plain or dense(case, case.dtype)
        if not _passes(result, plain[name], oracle[name], name):
            # Where few values are compared, plain torch's error in one order is luck.
            assert_accurate(result, worst_plain(case, plain, oracle)[name], oracle[name], per_row=True, what=name)
    return ours


def _passes(ours, plain, oracle, what):
    try:
        assert_accurate(ours, plain, oracle, per_row=True, what=what)
    except AssertionError:
        return False
    return True


def same_bits(ours, theirs):
    """NaN too."""
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _bits(x):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.element_size()])
