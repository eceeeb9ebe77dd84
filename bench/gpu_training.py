"""Tree attention's backward, alone and with the forward, on a GPU against its peers.

One peer at a time beside ours: 32K tokens under 28 responses, replicated, leave room for one.
"""

from dataclasses import dataclass

import torch
from gpu_attention import FLASH, attempt, ours
from gpu_peers import peers
from gpu_timing import Ceilings, num_buffers, timer_for
from gpu_work import Work, attention_backward_work, attention_work, useful_pairs
from gpu_workloads import DIM, HEADS, small_training_workloads, training_workloads
from interleaved import interleave, is_tie, ratio
from report import Row

from attention_cases import Case
from device_cases import assert_gradients

DTYPE = torch.bfloat16
NAMES = ("dq", "dk", "dv")
# Beyond this many operations a round takes seconds, and its spread is small.
LONG, FEW_ROUNDS = 10**14, 5


def own(workload):
    """Ours in the form of a peer."""
    return lambda *tensors: tensors, lambda q, k, v: ours(workload, q, k, v)(), lambda out: out


def gradients(parts, tensors, dout):
    """{"out", "dq", "dk", "dv"} on the axis, whatever layout a peer has."""
    lay_out, attend, to_axis = parts
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = to_axis(attend(*lay_out(*leaves)))
    return {"out": out.detach()} | dict(zip(NAMES, torch.autograd.grad(out, leaves, dout), strict=True))


def check(workload, chosen, absent):
    """Ours by the accuracy rule; peers by the norm of their difference from ours, as in gpu_attention."""
    q, k, v = workload.tensors(DTYPE)
    dout = torch.randn_like(q)
    nothing = torch.zeros(q.size(1), q.size(0), device=q.device)
    case = Case(tree=workload.tree, q=q, k=k, v=v, dout=dout, dlse=nothing, options={"key_start": 0})
    expected = assert_gradients(case)
    for peer in chosen:
        theirs = attempt(
            peer, absent, workload.name, lambda peer=peer: gradients(peer.prepare(workload), (q, k, v), dout)
        )
        for name in theirs or ():
            x, y = theirs[name].double(), expected[name].double()
            difference, bound = float((x - y).norm() / y.norm()), 16 * torch.finfo(DTYPE).eps
            assert difference <= bound, (
                f"{peer.name}, {workload.name}: {name} off by {difference:.2g}, at most {bound:.2g}"
            )


@dataclass
class Calls:
    """What is timed of one implementation, a call for each set of operands."""

    backward: list
    both: list


def calls_of(parts, sets):
    lay_out, attend, _ = parts
    calls = Calls([], [])
    for tensors in sets:
        leaves = [x.detach().requires_grad_() for x in lay_out(*tensors)]
        out = attend(*leaves)
        dout = out.detach()  # values as good as any, and no memory of their own

        def backward(out=out, leaves=leaves, dout=dout):
            torch.autograd.grad(out, leaves, dout, retain_graph=True)

        def both(leaves=leaves, dout=dout):
            torch.autograd.grad(attend(*leaves), leaves, dout)

        calls.backward.append(backward)
        calls.both.append(both)
    calls.both[0]()  # compiled, and known to fit
    if leaves[0].is_cuda:
        torch.cuda.synchronize()
    return calls


def measure(workload, chosen, absent, ceilings, rounds, chip=""):
    """Rows of one workload."""
    device = workload.tree.subtree_end.device
    arguments = useful_pairs(workload.tree), workload.num_queries, workload.tree.num_tokens
    shape = dict(heads=HEADS, dims=(DIM, DIM), element_size=DTYPE.itemsize)
    forward, backward = attention_work(*arguments, **shape), attention_backward_work(*arguments, **shape)
    sets = [workload.tensors(DTYPE, seed) for seed in range(num_buffers(device, backward.bytes))]
    rounds = min(rounds, FEW_ROUNDS) if backward.operations > LONG else rounds
    mine = calls_of(own(workload), sets)
    timer = timer_for(device)
    alone = interleave({"backward": mine.backward, "both": mine.both} | ceilings.implementations, rounds, timer)
    rows = rows_of(workload, alone, forward, backward, *ceilings.rates(alone), chip)
    for peer in chosen:
        theirs = attempt(peer, absent, workload.name, lambda peer=peer: calls_of(peer.prepare(workload), sets))
        if theirs is None:
            continue
        times = interleave(
            {"backward": mine.backward, "peer's backward": theirs.backward, "both": mine.both, "peer's": theirs.both},
            rounds,
            timer,
        )
        rows += rows_against(workload, peer.name, times)
        del theirs
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def rows_of(workload, times, forward, backward, operations_per_second, bytes_per_second, chip=""):
    """Rows of our own measured `times`: pure arithmetic. `chip`: the GPU's name."""
    label, rows = f"{workload.name}, backward", []
    both = Work(forward.operations + backward.operations, forward.bytes + backward.bytes)
    matmul, copy = f"matmul {operations_per_second / 1e12:.0f}", f"copy {bytes_per_second / 1e9:.0f}"
    for name, work in (("backward", backward), ("both", both)):
        seconds = times[name].median
        what = "backward" if name == "backward" else "forward + backward"
        rate = work.operations / seconds
        published = workload.published if name == "backward" else None
        note = f"{matmul}; FlashAttention-2 on an H100, no mask: {published:g}" if published else matmul
        floor = work.floor(operations_per_second, bytes_per_second)
        rows += [
            Row(label, f"regrow {what}", seconds * 1e6, "us", note=f"± {times[name].spread:.1%}", lower=True),
            Row(
                label,
                f"useful rate, {what}",
                rate / 1e12,
                "TFLOP/s",
                aim=published if "H100" in chip else None,
                note=note,
            ),
            Row(label, f"share of the matmul, {what}", rate / operations_per_second, ""),
            Row(label, f"share of the copy, {what}", work.bytes / seconds / bytes_per_second, "", note=copy),
            Row(label, f"share of the floor, {what}", floor / seconds, "", note="the slower of both"),
        ]
    return rows


def rows_against(workload, peer, times):
    """Rows of one peer beside ours: pure arithmetic. On trees every peer is to be beaten, on chains FlashAttention."""
    label = f"{workload.name}, backward"
    asked = workload.is_tree or peer in FLASH
    goals = {"backward": 1, "forward + backward": workload.training_goal if peer in FLASH else 1}
    names = {"backward": ("peer's backward", "backward"), "forward + backward": ("peer's", "both")}
    rows = []
    for what, (theirs, mine) in names.items():
        median, spread = times[theirs].median, times[theirs].spread
        rows += [
            Row(label, f"{peer} {what}", median * 1e6, "us", note=f"± {spread:.1%}", lower=True),
            Row(
                label, f"{what} against {peer}", ratio(times, theirs, mine), "x", bar=goals[what] if asked else None,
                tie=is_tie(times, theirs, mine),
            ),
        ]  # fmt: skip
    return rows


def run(device, rounds, only=None):
    """(rows, absent peers) of all workloads, or of those whose names contain `only`; each is first checked small."""
    rows, absent, ceilings = [], [], None
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    for workload, small in zip(training_workloads(), small_training_workloads(), strict=True):
        if only and only not in workload.name:
            continue
        workload, small = workload.to(device), small.to(device)
        chosen = [peer for peer in peers() if device.type in peer.training_devices and peer.applies(workload)]
        refused = []
        check(small, chosen, refused)
        names = {entry["peer"] for entry in refused}
        absent += refused
        ceilings = ceilings or Ceilings(device)
        rows += measure(workload, [peer for peer in chosen if peer.name not in names], absent, ceilings, rounds, chip)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows, absent
