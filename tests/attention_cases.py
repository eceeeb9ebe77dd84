"""Inputs of tree attention with known seeds, and the one comparison with the oracle that every test makes."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

import regrow
from accuracy import assert_accurate, is_accurate
from regrow import reference

INPUTS = ("q", "k", "v", "sinks")


@dataclass(repr=False)
class Case:
    """One call: a rectangle of the tree's axis, its tensors, its options, and the gradients of both results."""

    tree: regrow.PrefixTree
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor
    sinks: torch.Tensor | None = None
    partial: bool = False
    options: dict = field(default_factory=dict)  # of regrow.tree_attention and of the oracle alike

    @property
    def dtype(self):
        return self.q.dtype

    def __repr__(self):
        shapes = {name: list(getattr(self, name).shape) for name in ("q", "k", "v")}
        sinks, nodes = self.sinks is not None, (self.tree.parent.tolist(), self.tree.node_start.tolist())
        return f"Case({self.dtype}, {shapes}, {nodes=}, {sinks=}, partial={self.partial}, {self.options})"


def make_case(
    tree, *, dtype=torch.float32, heads=(4, 2), head_dim=16, value_dim=24, queries=None, query_index=None, keys=None,
    sinks=False, partial=False, magnitude=1.0, seed=0, **options,
):  # fmt: skip
    """Random values; `queries` and `keys` are (start, stop) on the axis, all of it by default."""
    first_query, last_query = queries or (0, tree.num_tokens)
    first_key, last_key = keys or (0, tree.num_tokens)
    if query_index is None:
        num_queries, options["query_start"] = last_query - first_query, first_query
    else:
        num_queries, options["query_index"] = len(query_index), query_index
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    return Case(
        tree=tree,
        q=random(num_queries, heads[0], head_dim, scale=magnitude),
        k=random(last_key - first_key, heads[1], head_dim, scale=magnitude),
        v=random(last_key - first_key, heads[1], value_dim, scale=magnitude),
        dout=random(num_queries, heads[0], value_dim),
        dlse=random(heads[0], num_queries),
        sinks=random(heads[0]) if sinks else None,
        partial=partial,
        options={"key_start": first_key, **options},
    )


@contextmanager
def one_thread():
    """The oracle's tensors are small: a second thread gains nothing, and on a busy machine all wait for it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@one_thread()
def run_oracle(case, dtype, gradients=True):
    """Results and gradients of the dense oracle in any dtype, by name."""
    return _differentiate(_oracle(case), case, {name: dtype for name in INPUTS}, gradients)


@one_thread()
def worst_plain(case, plain, oracle, orders=8):
    """`plain` with out and lse as far from the oracle as any order of the head dim takes them, element by element.

    Any order is plain torch's dot product just as well. Where few values are compared, its error in one is luck.
    """
    worst = dict(plain)
    q, k, v, sinks = (None if t is None else t.to(case.dtype) for t in (case.q, case.k, case.v, case.sinks))
    for seed in range(orders):
        order = torch.randperm(q.size(-1), generator=torch.Generator().manual_seed(seed))
        out, lse = _oracle(case)(q[..., order], k[..., order], v, sinks)
        for name, other in (("out", out), ("lse", lse.T)):
            distances = [(x.double() - oracle[name]).abs().nan_to_num() for x in (other, worst[name])]
            worst[name] = torch.where(distances[0] > distances[1], other, worst[name])
    return worst


def _oracle(case):
    def attend(q, k, v, sinks):
        tree = case.tree
        return reference.tree_attention(q, k, v, tree.subtree_end, tree.position_ids, sinks=sinks, **case.options)

    return attend


def run_regrow(case, gradients=True, **more):
    def attend(q, k, v, sinks):
        more_options = {"return_lse": True, "partial": case.partial, **case.options, **more}
        return regrow.tree_attention(q, k, v, case.tree, sinks=sinks, **more_options)

    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    return _differentiate(attend, case, {name: case.dtype for name in INPUTS} | {"sinks": wide}, gradients)


def _differentiate(attend, case, dtypes, gradients):
    inputs = {name: getattr(case, name) for name in INPUTS}
    leaves = {name: t.detach().to(dtypes[name]) for name, t in inputs.items() if t is not None}
    for leaf in leaves.values():
        leaf.requires_grad_(gradients)
    out, lse = attend(**{name: leaves.get(name) for name in INPUTS})
    results = {"out": out.detach(), "lse": lse.detach().T}
    if not gradients:
        return results
    found = _gradients(leaves, (out, case.dout.to(out.dtype)), (lse, case.dlse.to(lse.dtype)))
    return results | {f"d{name}": gradient for name, gradient in found.items()}


def _gradients(leaves, *results):
    """Without keys and sinks the oracle's lse is a constant: left out."""
    results = [(result, gradient) for result, gradient in results if result.requires_grad]
    outputs, grad_outputs = zip(*results, strict=True)
    gradients = torch.autograd.grad(outputs, list(leaves.values()), grad_outputs, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


@one_thread()
def rounding(case, oracle):
    """What rounding intermediate results may cost each gradient, by name: the third term of the accuracy rule.

    An ulp of a score is |score| ulp of its weight, and n terms summed in order err like a random walk of n steps. The
    gradients of scores and sinks are differences, of dout . v and of delta = dout . out - dlse; the part of delta is
    taken from the oracle, as the gradient of lse.
    """
    leaves = {name: getattr(case, name) for name in INPUTS if getattr(case, name) is not None}
    leaves = {name: t.detach().double().nan_to_num().requires_grad_() for name, t in leaves.items()}
    out, lse = _oracle(case)(**{name: leaves.get(name) for name in INPUTS})
    delta = (case.dout.double() * out.detach()).abs().sum(-1).T + case.dlse.double().abs()
    parts = _gradients(leaves, (lse, delta)) if lse.requires_grad else {}

    group = case.q.size(1) // case.k.size(1)
    scale = case.options.get("scale") or case.q.size(-1) ** -0.5
    keys = leaves["k"].repeat_interleave(group, 1)
    steps = _largest(torch.einsum("qhd,khd->hqk", leaves["q"], keys) * scale)
    steps += max(case.q.size(0) * group, case.k.size(0), case.q.size(2)) ** 0.5
    storage = torch.finfo(case.dtype).eps
    compute = torch.finfo(torch.float64 if case.dtype == torch.float64 else torch.float32).eps
    costs = {}
    for name, result in oracle.items():
        if not name.startswith("d"):
            continue
        delta_part = parts.get(name[1:], torch.zeros_like(result)).abs().nan_to_num()
        largest = max(_largest(result), _largest(delta_part))
        costs[name] = 2 * storage * delta_part + 2 * compute * largest * steps
    return costs


def oracle_rounding(case, oracle):
    """What the oracle's own out may be off by: nothing to narrower formats, but fp64 results are compared in kind.

    It takes exp(score - lse), so an ulp of lse is |lse| ulp of every weight; the kernels divide by the sum instead.
    """
    own = torch.finfo(torch.float64).eps * _largest(oracle["lse"]) * _largest(oracle["out"])
    return torch.full_like(oracle["out"], own if case.dtype == torch.float64 else 0.0)


def _largest(x):
    x = x.detach()[x.detach().isfinite()]
    return float(x.abs().max()) if x.numel() else 0.0


def assert_matches_oracle(case, ours=None):
    """out, lse and every gradient by the accuracy rule, per row too; returns ours. `ours` may be out and lse alone.

    The rule's terms are asked for one by one, cheapest first: most results need no error but the floor's two ulp.
    `rounding` is for gradients alone; for results, plain torch may sum in other orders.
    """
    ours = run_regrow(case) if ours is None else ours
    gradients = ours.keys() != {"out", "lse"}
    oracle, plain, costs = run_oracle(case, torch.float64, gradients), None, None
    assert ours.keys() == oracle.keys()
    for name, result in ours.items():
        compared = dict(per_row=name != "dsinks", what=name)
        if is_accurate(result, oracle[name], oracle[name], **compared):
            continue
        plain = plain or run_oracle(case, case.dtype, gradients)
        if is_accurate(result, plain[name], oracle[name], **compared):
            continue
        if name in ("out", "lse"):
            worst, own = worst_plain(case, plain, oracle)[name], oracle_rounding(case, oracle)
            assert_accurate(result, worst, oracle[name], rounding=own if name == "out" else None, **compared)
            continue
        costs = costs or rounding(case, oracle)
        assert_accurate(result, plain[name], oracle[name], rounding=costs[name], **compared)
    return ours


def assert_same(ours, theirs):
    """Bit by bit, NaN too."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
