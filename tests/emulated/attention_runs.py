"""Tree attention in the emulator: a call in every way, held against the oracle and against the CPU backend."""

from dataclasses import dataclass

import torch

from attention_cases import assert_matches_oracle, run_regrow
from plan_decoder import Plan
from regrow import reference
from regrow._load import _C

NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
KEY_TILE = 64

# (head dim, rows of a query tile), as in csrc/kernels/attention_configurations.h.
CONFIGURATIONS = [(64, 128), (128, 128), (64, 64), (128, 64), (256, 64), (64, 16), (128, 16), (256, 16)]


@dataclass
class Runner:
    """Cases in the emulator, with plans for `rows` rows and a chip of `multiprocessors`; `every_way` is the fixture."""

    emulator: object
    every_way: object
    ways: list
    rows: int = 64
    multiprocessors: int = 1

    def plan(self, case):
        """The plan's words."""
        tree, options = case.tree, case.options
        index = options.get("query_index")
        head_dim = max(case.q.size(2), case.v.size(2))
        rows, words = _C.build_cuda_plan(
            tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), None if index is None else index.numpy(),
            options.get("query_start", 0), case.q.size(0), options["key_start"], case.k.size(0),
            options.get("window") or 0, case.q.size(1), case.k.size(1), head_dim, 90, self.multiprocessors, self.rows,
        )  # fmt: skip
        assert rows == self.rows
        return words

    def arrays(self, case, options, plan=None):
        """out [Tq, Hq, Dv] as bits or fp32, lse [Hq, Tq], report."""
        tree, index = case.tree, case.options.get("query_index")
        scale = case.options.get("scale")
        return self.emulator.tree_attention(
            *(x.view(torch.uint16).numpy() for x in (case.q, case.k, case.v)),
            tree.subtree_end.numpy(), tree.position_ids.numpy(),
            self.plan(case) if plan is None else plan, self.rows, self.multiprocessors,
            None if index is None else index.numpy(),
            case.options.get("query_start", 0), case.options["key_start"],
            case.q.size(2) ** -0.5 if scale is None else scale,
            case.options.get("window") or 0, case.options.get("softcap") or 0.0,
            None if case.sinks is None else case.sinks.float().numpy(), case.partial, NAMES[case.dtype], options,
        )  # fmt: skip

    def results(self, case, out, lse):
        """As tests name them: out, and lse [Tq, Hq]."""
        out = torch.from_numpy(out)
        return {"out": out if case.partial else out.view(case.dtype), "lse": torch.from_numpy(lse).T}

    def once(self, case, turn=0):
        """The results of one way to run: each in its turn, where one for each case is enough."""
        way = self.ways[turn % len(self.ways)]
        return self.results(case, *self.arrays(case, self.emulator.Options(**way))[:2])

    def run(self, case):
        """The results of every way, which are the same bits."""
        return self.results(case, *self.every_way(lambda options: self.arrays(case, options))[:2])

    def check(self, case):
        """Every way, the oracle, the CPU backend; returns the results."""
        return self.compare(case, self.run(case))

    def compare(self, case, ours):
        assert_matches_oracle(case, ours)
        assert_near_cpu(case, ours)
        return ours


def assert_near_cpu(case, ours):
    """What rounding may set apart, value by value; see `rounding_apart`."""
    cpu = run_regrow(case, gradients=False)
    for name, bound in rounding_apart(case).items():
        assert ours[name].dtype == cpu[name].dtype
        for pattern in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(pattern(ours[name]), pattern(cpu[name])), f"{name}: another {pattern.__name__} pattern"
        distance = (ours[name].double() - cpu[name].double()).abs().nan_to_num(0)
        excess = (distance - bound).flatten()
        assert not excess.numel() or excess.max() <= 0, (
            f"{name}: the CPU backend is {distance.max():.3g} away, may be {bound.flatten()[excess.argmax()]:.3g}"
        )


def rounding_apart(case):
    """How far two kernels may be apart that both sum in fp32 and round weights and out to the inputs' format.

    To first order, each side erring by half of it. A score is a sum of head_dim products, each sum rounded relative to
    the sum of their sizes; scale, softcap and exp2 add a few ulp of its own size. That error is lse's, beside a few ulp
    of its logarithm, and it is the relative error of a weight, as is the rounding to 16 bits. fp16 weights below 2^-14
    are rounded to multiples of 2^-24. All keys' weights are then summed in fp32.
    """
    options, group = case.options, case.q.size(1) // case.k.size(1)
    q, k, v = (x.detach().double().nan_to_num(0, 0, 0) for x in (case.q, case.k, case.v))
    unit, storage = torch.finfo(torch.float32).eps, torch.finfo(case.dtype).eps
    scale = options.get("scale")
    scale = abs(q.size(2) ** -0.5 if scale is None else scale)
    size = torch.einsum("qhd,khd->qhk", q.abs(), k.abs().repeat_interleave(group, 1)) * scale
    size = size.amax(2) if k.size(0) else torch.zeros(q.shape[:2], dtype=torch.float64)  # [Tq, Hq]
    score = unit * ((q.size(2) + 4) * size + 4 * (options.get("softcap") or 0))

    sinks = None if case.sinks is None else case.sinks.double()
    tree = case.tree
    spread, lse = reference.tree_attention(q, k, v.abs(), tree.subtree_end, tree.position_ids, sinks=sinks, **options)
    lse = lse.T.nan_to_num(0, 0, 0)
    lse_bound = score + unit * (4 * lse.abs() + 8)
    relative = 2 * score + storage + unit * (k.size(0) + 8)
    subnormal = 2.0**-24 * k.size(0) * (v.abs().max() if v.numel() else 0) * (case.dtype == torch.float16)
    out_bound = relative[..., None] * spread + subnormal
    if not case.partial:
        out_bound = out_bound + storage * spread + torch.finfo(case.dtype).smallest_normal * storage
    return {"out": out_bound, "lse": lse_bound}


def tiles_of(runner, case):
    """The plan, and (query tile, key tile, partial) of all its work."""
    plan = Plan(runner.plan(case))
    return plan, plan.forward_tiles()
