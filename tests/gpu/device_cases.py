"""Attention on any device, by the accuracy rule: the cases of tests/attention_cases.py, moved and compared.

The oracle runs on the device too, a head at a time, so that its dense scores fit at real sizes.
"""

from dataclasses import replace

import torch

import regrow
from accuracy import assert_accurate, is_accurate
from attention_cases import Case, rounding, run_oracle, run_regrow, worst_plain


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
    return run_regrow(case, gradients=False, **more)


def forward_case(tree, q, k, v, **options):
    """A case without gradients, from tensors that are on the device already."""
    return Case(
        tree=tree, q=q, k=k, v=v, dout=q[:0], dlse=q.new_empty(q.size(1), 0), options={"key_start": 0, **options}
    )


def heads_of(case):
    """The case as one for each query head, with the KV head that it attends to."""
    group = case.q.size(1) // case.k.size(1)
    for head in range(case.q.size(1)):
        one, of_key = slice(head, head + 1), slice(head // group, head // group + 1)
        yield replace(
            case, q=case.q[:, one], k=case.k[:, of_key], v=case.v[:, of_key], dout=case.dout[:, one],
            dlse=case.dlse[one], sinks=None if case.sinks is None else case.sinks[one],
        )  # fmt: skip


def joined(parts, name, group):
    """One result of all heads: those of k and v are summed over the heads of a group."""
    parts = [part[name] for part in parts]
    if name in ("dk", "dv"):
        parts = [sum(parts[first : first + group]) for first in range(0, len(parts), group)]
    return torch.cat(parts, 0 if name == "dsinks" else 1)


class Dense:
    """What the oracle and plain torch say of a case, head by head, so that dense scores fit at real sizes."""

    def __init__(self, case, gradients):
        self.cases, self.gradients = list(heads_of(case)), gradients
        self.group, self.dtype = case.q.size(1) // case.k.size(1), case.dtype
        self.parts = {}

    def of(self, dtype):
        """A part for each head: {name: result}."""
        if dtype not in self.parts:
            self.parts[dtype] = [run_oracle(case, dtype, self.gradients) for case in self.cases]
        return self.parts[dtype]

    def __call__(self, dtype, name):
        return joined(self.of(dtype), name, self.group)

    def worst_plain(self, name):
        """Where few values are compared, plain torch's error in one order is luck."""
        heads = zip(self.cases, self.of(self.dtype), self.of(torch.float64), strict=True)
        return joined([worst_plain(*head) for head in heads], name, self.group)

    def rounding(self, name):
        heads = zip(self.cases, self.of(torch.float64), strict=True)
        return joined([rounding(*head) for head in heads], name, self.group)


def assert_forward(case, ours=None):
    """out and lse by the accuracy rule (docs/design.md), per row too; returns ours."""
    return _assert_matches(case, attend(case) if ours is None else ours, gradients=False)


def assert_gradients(case, ours=None):
    """out, lse and the gradients of q, k, v and sinks likewise; returns ours."""
    return _assert_matches(case, run_regrow(case) if ours is None else ours, gradients=True)


def _assert_matches(case, ours, gradients):
    """The rule's terms are asked for one by one, cheapest first, as in tests/attention_cases.py."""
    dense = Dense(case, gradients)
    for name, result in ours.items():
        oracle, compared = dense(torch.float64, name), dict(per_row=name != "dsinks", what=name)
        if is_accurate(result, oracle, oracle, **compared):
            continue
        plain = dense(case.dtype, name)
        if is_accurate(result, plain, oracle, **compared):
            continue
        if name in ("out", "lse"):
            assert_accurate(result, dense.worst_plain(name), oracle, **compared)
        else:
            assert_accurate(result, plain, oracle, rounding=dense.rounding(name), **compared)
    return ours


def same_bits(ours, theirs):
    """NaN too."""
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _bits(x):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.element_size()])
