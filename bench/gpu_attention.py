"""Tree attention forward on a GPU against its peers, in the same process and the same minutes."""

import sys
from functools import partial
from pathlib import Path

import torch
from gpu_peers import not_installed, peers
from gpu_timing import Ceilings, num_buffers, timer_for
from gpu_work import attention_work, useful_pairs
from gpu_workloads import DIM, HEADS, small_workloads, workloads
from interleaved import interleave, is_tie, ratio
from report import Row

import regrow

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from device_cases import assert_forward, forward_case, plan_of

DTYPE = torch.bfloat16
# FlashAttention-2 where torch or a package has it: a chain is to be no slower.
FLASH = ("SDPA flash", "torch varlen", "flash-attn varlen")


def ours(workload, q, k, v):
    """The call as a model makes it: the plan is made once for all layers."""
    plan = plan_of(workload.tree, q, k, v, query_index=workload.query_index)
    return lambda: regrow.tree_attention(q, k, v, workload.tree, query_index=workload.query_index, plan=plan)


@torch.no_grad()
def check(workload, chosen, absent):
    """Ours by the accuracy rule against the fp64 oracle; peers by the norm of their difference from ours, since none
    of them is the truth. A peer that cannot run here is put into `absent` with its reason."""
    q, k, v = workload.tensors(DTYPE)
    index = {} if workload.query_index is None else {"query_index": workload.query_index}
    out = assert_forward(forward_case(workload.tree, q, k, v, **index))["out"].double()
    for peer in chosen:
        theirs = attempt(peer, absent, workload.name, lambda peer=peer: once(peer, workload, q, k, v))
        if theirs is not None:
            difference = float((theirs.double() - out).norm() / out.norm())
            bound = 16 * torch.finfo(DTYPE).eps
            assert difference <= bound, f"{peer.name}, {workload.name}: off by {difference:.2g}, at most {bound:.2g}"


def once(peer, workload, q, k, v):
    lay_out, attend, to_axis = peer.prepare(workload)
    return to_axis(attend(*lay_out(q, k, v)))


def attempt(peer, absent, workload, call):
    """The call's result, or None with the reason in `absent`: a peer that refuses or runs out of memory is reported."""
    try:
        return call()
    except (RuntimeError, NotImplementedError, ValueError, torch.OutOfMemoryError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        absent.append({"workload": workload, "peer": peer.name, "reason": reason})
        return None


@torch.no_grad()
def measure(workload, chosen, absent, ceilings, rounds):
    """Rows of one workload, and its ceilings."""
    device = workload.tree.subtree_end.device
    work = attention_work(
        useful_pairs(workload.tree, workload.query_index), workload.num_queries, workload.tree.num_tokens,
        heads=HEADS, dims=(DIM, DIM), element_size=DTYPE.itemsize,
    )  # fmt: skip
    sets = [workload.tensors(DTYPE, seed) for seed in range(num_buffers(device, work.bytes))]
    implementations = {"regrow": [ours(workload, *tensors) for tensors in sets]}
    for peer in chosen:
        calls = attempt(peer, absent, workload.name, lambda peer=peer: prepared(peer, workload, sets))
        if calls:
            implementations[peer.name] = calls
    names = list(implementations)
    times = interleave(implementations | ceilings.implementations, rounds, timer_for(device))
    return rows_of(workload, names, times, work, *ceilings.rates(times))


def prepared(peer, workload, sets):
    """One call for each set of operands, tried once: compiled, and known to fit."""
    lay_out, attend, _ = peer.prepare(workload)
    calls = [partial(attend, *lay_out(*tensors)) for tensors in sets]
    calls[0]()
    if sets[0][0].is_cuda:
        torch.cuda.synchronize()
    return calls


def rows_of(workload, names, times, work, operations_per_second, bytes_per_second):
    """Rows of measured `times`: pure arithmetic."""
    label, seconds = workload.name, times["regrow"].median
    rows = [
        Row(label, f"{name} forward", times[name].median * 1e6, "us", note=f"± {times[name].spread:.1%}", lower=True)
        for name in names
    ]
    for name in names:
        if name == "regrow":
            continue
        goal = 1 if workload.is_tree or (workload.query_index is None and name in FLASH) else None
        tie = is_tie(times, name, "regrow")
        rows.append(Row(label, f"against {name}", ratio(times, name, "regrow"), "x", bar=goal, tie=tie))
    rate, moved = work.operations / seconds, work.bytes / seconds
    matmul, copy = f"matmul {operations_per_second / 1e12:.0f}", f"copy {bytes_per_second / 1e9:.0f}"
    floor = work.floor(operations_per_second, bytes_per_second)
    return [
        *rows,
        Row(label, "useful rate", rate / 1e12, "TFLOP/s", note=matmul),
        Row(label, "share of the matmul", rate / operations_per_second, ""),
        Row(label, "bytes that must move", moved / 1e9, "GB/s", note=copy),
        Row(label, "share of the copy", moved / bytes_per_second, ""),
        Row(label, "share of the floor", floor / seconds, "", *workload.goals, note="the slower of both"),
    ]


def run(device, rounds, only=None):
    """(rows, absent peers) of all workloads, or of those whose names contain `only`; each is first checked small."""
    rows, absent, ceilings = [], not_installed(), None
    for workload, small in zip(workloads(), small_workloads(), strict=True):
        if only and only not in workload.name:
            continue
        workload, small = workload.to(device), small.to(device)
        chosen = [peer for peer in peers() if device.type in peer.devices and peer.applies(workload)]
        refused = []
        check(small, chosen, refused)
        names = {entry["peer"] for entry in refused}
        absent += refused
        ceilings = ceilings or Ceilings(device)
        fit = [peer for peer in chosen if peer.name not in names]
        rows += measure(workload, fit, absent, ceilings, rounds)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows, absent
