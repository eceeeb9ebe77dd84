"""The backward of tree attention in the emulator: gradients in every way, against the oracle and the CPU backend."""

from dataclasses import dataclass

import numpy as np
import torch

import regrow
from attention_cases import assert_matches_oracle, run_regrow
from attention_runs import NAMES, Runner
from plan_decoder import Plan
from regrow import reference

# Head dim -> keys of a tile, as in csrc/kernels/attention_configurations.h. A query tile has 64 rows.
KEYS = {64: 128, 128: 128, 256: 64}
ROWS = 64
GRADIENTS = ("dq", "dk", "dv")


@dataclass
class BackwardRunner:
    """Cases in the emulator, with plans for a chip of `multiprocessors`; `every_way` is the fixture.

    `given` is what the backward takes of the forward, out and lse of all keys, as `forward` makes it on the CPU. `into`
    are the accumulators' values, by name, zeros by default; `wanted` names the gradients that are asked for.
    """

    emulator: object
    every_way: object
    ways: list
    multiprocessors: int = 1

    def words(self, case):
        return Runner(self.emulator, self.every_way, self.ways, ROWS, self.multiprocessors).plan(case)

    def plan(self, case):
        """The plan of the backward, decoded."""
        return Plan(self.words(case)).of_backward

    def arrays(self, case, options, given=None, *, into=None, wanted=GRADIENTS, dlse=True, words=None):
        """dq, dk, dv (fp32, empty where not wanted), dsinks, report."""
        given = given or forward(case)
        tree, index, scale = case.tree, case.options.get("query_index"), case.options.get("scale")
        out, dout = given["out"], case.dout
        if out.dtype != dout.dtype:  # as the op does
            out, dout = out.float(), dout.float()
        sums = [_accumulator(case, name, wanted, into) for name in GRADIENTS]
        return self.emulator.tree_attention_backward(
            _bits(case.q), _bits(case.k), _bits(case.v), _bits(out), _bits(dout),
            given["lse"].T.contiguous().numpy(), case.dlse.float().numpy() if dlse else None,
            tree.subtree_end.numpy(), tree.position_ids.numpy(), self.words(case) if words is None else words,
            self.multiprocessors, None if index is None else index.numpy(), case.options.get("query_start", 0),
            case.options["key_start"], case.q.size(2) ** -0.5 if scale is None else scale,
            case.options.get("window") or 0, case.options.get("softcap") or 0.0,
            None if case.sinks is None else case.sinks.float().numpy(), _bits(case.dout.to(case.dtype)), *sums,
            NAMES[case.dtype], options,
        )  # fmt: skip

    def once(self, case, given=None, turn=0, **more):
        """The gradients of one way to run, each in its turn."""
        way = self.emulator.Options(**self.ways[turn % len(self.ways)])
        return named(case, self.arrays(case, way, given, **more))

    def run(self, case, given=None, **more):
        """The gradients of every way, which are the same bits: fp32, by name."""
        given, words = given or forward(case), self.words(case)
        return named(case, self.every_way(lambda options: self.arrays(case, options, given, words=words, **more)))

    def check_once(self, case, turn=0):
        """One way, the oracle, the CPU backend; returns the gradients."""
        return compare(case, self.once(case, turn=turn))

    def check(self, case):
        """Every way, the oracle, the CPU backend; returns the gradients."""
        return compare(case, self.run(case))


def _bits(x):
    return (x if x.dtype == torch.float32 else x.view(torch.uint16)).numpy()


def _accumulator(case, name, wanted, into):
    like = getattr(case, name[1:])
    if name not in wanted:
        return np.zeros((0,) * 3, np.float32)
    return np.zeros(tuple(like.shape), np.float32) if into is None else into[name].numpy().copy()


def named(case, arrays):
    """The gradients, of a launch that no bank conflict slows down."""
    assert arrays[-1].bank_conflicts == 0
    gradients = dict(zip((*GRADIENTS, "dsinks"), map(torch.from_numpy, arrays[:4]), strict=True))
    return gradients if case.sinks is not None else {name: gradients[name] for name in GRADIENTS}


def forward(case):
    """out and lse [Tq, Hq] of the CPU backend."""
    return run_regrow(case, gradients=False)


def compare(case, ours, given=None):
    """By the accuracy rule after the rounding that the op does, and before it near the CPU backend."""
    given = given or forward(case)
    rounded = {name: x if name == "dsinks" else x.to(case.dtype) for name, x in ours.items()}
    assert_matches_oracle(case, given | rounded)
    assert_near_cpu(case, ours, given)
    return ours


def on_cpu(case, given, into=None, dlse=True):
    """What the CPU backend adds to the accumulators, fp32."""
    tree, options = case.tree, case.options
    index, start = options.get("query_index"), options.get("query_start", 0)
    key_start, window = options["key_start"], options.get("window")
    sums = {name: torch.from_numpy(_accumulator(case, name, GRADIENTS, into)) for name in GRADIENTS}
    plan = regrow.plan(
        tree, query_heads=case.q.size(1), kv_heads=case.k.size(1), window=window, key_start=key_start,
        num_keys=case.k.size(0), query_index=index,
        **({"query_start": start, "num_queries": case.q.size(0)} if index is None else {}),
    )  # fmt: skip
    scale, sinks = options.get("scale"), case.sinks
    dsinks = torch.ops.regrow.tree_attention_bwd_accum(
        case.dout, case.dlse.float() if dlse else None, case.q, case.k, case.v, given["out"],
        given["lse"].T.contiguous(), tree.subtree_end, tree.position_ids, plan, index, start, key_start,
        case.q.size(2) ** -0.5 if scale is None else scale, window, options.get("softcap"),
        None if sinks is None else sinks.float(), *sums.values(),
    )  # fmt: skip
    return sums | ({} if sinks is None else {"dsinks": dsinks})


def assert_near_cpu(case, ours, given):
    """What rounding may set apart, value by value; see `rounding_apart`."""
    cpu = on_cpu(case, given)
    assert ours.keys() == cpu.keys()
    for name, bound in rounding_apart(case, given).items():
        assert torch.equal(ours[name].isnan(), cpu[name].isnan()), f"{name}: another NaN pattern"
        excess = (ours[name].double() - cpu[name].double()).abs().nan_to_num(0) - bound
        assert not excess.numel() or excess.max() <= 0, (
            f"{name}: the CPU backend is {excess.max():.3g} further away than the bound, at most {bound.max():.3g}"
        )


def rounding_apart(case, given):
    """How far two kernels may be apart that both sum in fp32 and round weights and dscores to the inputs' format.

    To first order, as in `attention_runs.rounding_apart`: a score's error is its weight's relative error; dscores are
    weights times a difference, each part of which errs by an ulp of the sum of its products' sizes for each product;
    rounding weights and dscores to 16 bits sets them half an ulp off on either side. What is below fp16's normal range
    is rounded to multiples of 2^-24.
    """
    q, k, v, dout, out, dlse = (
        x.detach().double().nan_to_num(0, 0, 0) for x in (case.q, case.k, case.v, case.dout, given["out"], case.dlse)
    )
    options, group, lse = case.options, q.size(1) // max(k.size(1), 1), given["lse"].double().T[:, :, None]  # [h, q, 1]
    unit, storage = torch.finfo(torch.float32).eps, torch.finfo(case.dtype).eps
    below = 2.0**-24 * (case.dtype == torch.float16)
    scale, cap = options.get("scale"), options.get("softcap") or 0
    scale = q.size(2) ** -0.5 if scale is None else scale
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))

    def products(a, b):
        return torch.einsum("qhd,khd->hqk", a, b)

    sees = visible(case)
    scores = products(q, keys) * scale
    sizes = products(q.abs(), keys.abs()) * abs(scale)
    error = unit * ((q.size(2) + 4) * sizes + 4 * cap + lse.nan_to_num(0, 0, 0).abs())
    bend = torch.tanh(scores / cap) if cap else torch.zeros_like(scores)
    weights = ((cap * bend if cap else scores) - lse).exp()
    weights = torch.where(sees, weights, 0).nan_to_num(0, 0, 0)
    delta = (dout * out).sum(2).T - dlse
    delta_error = unit * ((v.size(2) + 4) * (dout.abs() * out.abs()).sum(2).T + dlse.abs())
    difference = products(dout, values) - delta[:, :, None]
    difference_error = unit * (v.size(2) + 4) * products(dout.abs(), values.abs()) + delta_error[:, :, None]
    dscores = weights * difference * (1 - bend**2)
    relative = 2 * error + storage + unit * 8
    dscores_error = weights * (difference_error + 8 * unit * difference.abs() * bool(cap)) + relative * dscores.abs()
    dscores_error = dscores_error + below * sees
    weights_error = relative * weights + below * sees

    def of_keys(errors, sizes, rows):
        sums = torch.einsum("hqk,hqd->khd", errors + unit * (q.size(0) * group + 8) * sizes, rows.transpose(0, 1))
        return sums.unflatten(1, (k.size(1), group)).sum(2) if group else sums

    of_queries = dscores_error + unit * (k.size(0) + 8) * dscores.abs()
    bounds = {
        "dq": torch.einsum("hqk,khd->qhd", of_queries, keys.abs()) * abs(scale),
        "dk": of_keys(dscores_error, dscores.abs(), q.abs()) * abs(scale),
        "dv": of_keys(weights_error, weights, dout.abs()),
    }
    if case.sinks is not None:
        sink = case.sinks.double()[:, None] - lse[:, :, 0]
        of_rows = delta_error + unit * (q.size(0) + 8 + sink.abs().nan_to_num(0, 0, 0)) * delta.abs()
        bounds["dsinks"] = (sink.exp() * of_rows).nan_to_num(0, 0, 0).sum(1)
    return bounds


def visible(case):
    """[Tq, Tk] by the definition."""
    positions = case.options.get("query_index")
    if positions is None:
        positions = case.options["query_start"] + torch.arange(case.q.size(0))
    keys = case.options["key_start"] + torch.arange(case.k.size(0))
    tree = case.tree
    return reference.visible(tree.subtree_end, tree.position_ids, positions, keys, case.options.get("window"))
