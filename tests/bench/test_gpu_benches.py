"""The GPU benches' code, on the CPU at small sizes: every peer computes the same attention, every report is written."""

import json
from types import SimpleNamespace

import gpu_attention
import gpu_check
import gpu_peers
import gpu_rows
import gpu_run
import gpu_training
import pytest
import torch
import torch.nn.functional as F
from gpu_timing import Ceilings, HostTimer, num_buffers
from gpu_work import Work
from gpu_workloads import chain, grpo, small_training_workloads, small_workloads, training_workloads
from interleaved import Times, interleave
from report import Row, write_markdown, write_rows

CPU = torch.device("cpu")


def varlen(q, k, v, cu_q, cu_k, max_q, max_k):
    """What the varlen peers promise, a sequence at a time."""
    outs = []
    for (q0, q1), (k0, k1) in zip(cu_q.unfold(0, 2, 1).tolist(), cu_k.unfold(0, 2, 1).tolist(), strict=True):
        assert q1 - q0 <= max_q and k1 - k0 <= max_k
        one = [x[None].transpose(1, 2).float() for x in (q[q0:q1], k[k0:k1], v[k0:k1])]
        mask = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        outs.append(F.scaled_dot_product_attention(*one, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outs).to(q.dtype)


@pytest.fixture
def every_peer():
    on_cpu = [peer for peer in gpu_peers.peers() if "cpu" in peer.devices]
    made = gpu_peers.causal_varlen(varlen)
    return [*on_cpu, gpu_peers.Peer("varlen", gpu_peers.whole_or_chains, made, training_devices=gpu_peers.BOTH)]


@pytest.mark.parametrize("workload", small_workloads(), ids=lambda workload: workload.name)
def test_peers_compute_the_same(workload, every_peer):
    chosen = [peer for peer in every_peer if peer.applies(workload)]
    assert len(chosen) >= 2
    absent = []
    gpu_attention.check(workload, chosen, absent)
    assert absent == []


def test_a_peer_that_differs_is_noticed():
    parts = (lambda *tensors: tensors, lambda q, k, v: q * 1.1, lambda out: out)
    wrong = gpu_peers.Peer("wrong", lambda _: True, lambda workload: parts)
    with pytest.raises(AssertionError, match=r"wrong, chain of 300: off by"):
        gpu_attention.check(small_workloads()[0], [wrong], [])


def test_a_peer_that_refuses_is_reported():
    def refuse(workload):
        raise RuntimeError("no such backend | here\nand a long trace")

    absent = []
    gpu_attention.check(small_workloads()[0], [gpu_peers.Peer("old", lambda _: True, refuse)], absent)
    assert absent == [{"workload": "chain of 300", "peer": "old", "reason": "no such backend | here"}]
    assert gpu_run.absences(absent)[-1] == "| chain of 300 | old | no such backend / here |"


def test_rows_of_a_workload(every_peer):
    workload, absent = small_workloads()[2], []
    chosen = [peer for peer in every_peer if peer.applies(workload)]
    rows = gpu_attention.measure(workload, chosen, absent, Ceilings(CPU, 64, 2**16), rounds=2)
    measures = {row.measure: row for row in rows}
    assert absent == [] and {"regrow forward", "SDPA masked forward", "share of the floor"} <= set(measures)
    assert measures["against SDPA masked"].bar == 1 and all(row.value > 0 for row in rows)


@pytest.mark.parametrize("workload", small_training_workloads(), ids=lambda workload: workload.name)
def test_peers_have_the_same_gradients(workload, every_peer):
    chosen = [peer for peer in every_peer if "cpu" in peer.training_devices and peer.applies(workload)]
    assert len(chosen) >= 2
    absent = []
    gpu_training.check(workload, chosen, absent)
    assert absent == []


def test_a_gradient_that_differs_is_noticed():
    def attend(q, k, v):
        group = q.size(1) // k.size(1)
        k, v = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (k.detach() + 0 * k, v))
        return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)

    parts = (lambda *tensors: tensors, attend, lambda out: out)
    wrong = gpu_peers.Peer("wrong", lambda _: True, lambda workload: parts)
    with pytest.raises(AssertionError, match=r"wrong, chain of 300: dk off by"):
        gpu_training.check(small_training_workloads()[0], [wrong], [])


def test_rows_of_training(every_peer):
    workload, absent = small_training_workloads()[3], []
    chosen = [peer for peer in every_peer if "cpu" in peer.training_devices and peer.applies(workload)]
    rows = gpu_training.measure(workload, chosen, absent, Ceilings(CPU, 64, 2**16), rounds=2)
    measures = {row.measure for row in rows}
    assert absent == [] and all(row.value > 0 for row in rows)
    assert {"regrow backward", "useful rate, forward + backward", "share of the floor, backward"} <= measures
    assert {"varlen backward", "backward against SDPA masked", "forward + backward against varlen"} <= measures


def test_goals_of_training():
    measured = times(**{"backward": 1e-3, "both": 2e-3, "peer's backward": 3e-3, "peer's": 1e-2})
    dual_kv, chained = training_workloads()[3], chain(300)

    def verdicts(workload, peer):
        return {row.measure: (row.bar, row.verdict) for row in gpu_training.rows_against(workload, peer, measured)}

    against_flash = verdicts(dual_kv, "SDPA flash")
    assert dual_kv.tree.num_sequences == 28
    assert against_flash["forward + backward against SDPA flash"] == (6, "MISSED")  # 5 times
    assert against_flash["backward against SDPA flash"] == (1, "bar")
    assert verdicts(dual_kv, "FlexAttention")["forward + backward against FlexAttention"] == (1, "bar")
    assert verdicts(grpo(50, 2, 5), "SDPA flash")["forward + backward against SDPA flash"] == (1, "bar")
    assert verdicts(chained, "FlexAttention")["backward against FlexAttention"] == (None, "")


# 1 ms for 1e9 operations of the backward, 2 ms for 1.4e9 of both; 337 TFLOP/s are the aim where they were published.
def test_rates_of_training():
    workload, measured = training_workloads()[1], times(backward=1e-3, both=2e-3)
    work = Work(4 * 10**8, 10**6), Work(10**9, 10**6)
    for chip, aim in (("NVIDIA H100 80GB HBM3", 337), ("NVIDIA H200", None)):
        rows = gpu_training.rows_of(workload, measured, *work, 2e12, 4e9, chip)
        values = {row.measure: row for row in rows}
        assert values["useful rate, backward"].value == 1.0 and values["useful rate, backward"].aim == aim
        assert "337" in values["useful rate, backward"].note
        assert values["share of the matmul, forward + backward"].value == pytest.approx(0.35)
        assert values["share of the copy, forward + backward"].value == pytest.approx(0.25)
        assert values["share of the floor, backward"].value == 0.5


def times(**medians):
    return {name: Times([seconds] * 4) for name, seconds in medians.items()}


# 1 ms for 1e9 operations and 1e6 bytes, under ceilings of 2e12 operations and 4e9 bytes a second.
def test_shares():
    workload = small_workloads()[4]  # verification: the floor has a bar
    measured = times(regrow=1e-3, other=2e-3)
    rows = gpu_attention.rows_of(workload, ["regrow", "other"], measured, Work(10**9, 10**6), 2e12, 4e9)
    values = {row.measure: (row.value, row.verdict) for row in rows}
    assert values["useful rate"] == (1.0, "") and values["share of the matmul"] == (0.5, "")
    assert values["bytes that must move"] == (1.0, "") and values["share of the copy"] == (0.25, "")
    assert values["share of the floor"] == (0.5, "MISSED")
    assert values["against other"] == (2.0, "bar")


def test_gather_and_scatter():
    rows = gpu_rows.run(CPU, 2, num_rows=64, width=16, ceilings=Ceilings(CPU, 64, 2**16))
    assert len(rows) == 2 * 3 * 4
    shares = [row for row in rows if row.measure == "share of the copy"]
    assert all(row.bar == 0.9 and row.verdict in ("bar", "MISSED") for row in shares)


def test_a_tie_is_no_loss():
    assert Row("w", "against x", 0.99, "x", bar=1, tie=True).verdict == "bar"
    assert Row("w", "against x", 0.99, "x", bar=1).verdict == "MISSED"
    assert Row("w", "share", 0.79, "", bar=0.8, tie=True).verdict == "MISSED"


def test_report(tmp_path):
    rows = [Row("a workload", "against a peer", 0.5, "x", bar=1)]
    facts, absent = {"gpu": "a chip", "copy_gb_s": 1.0}, [{"workload": "all", "peer": "p", "reason": "not installed"}]
    write_rows(rows, tmp_path / "new" / "gpu.json", facts, absent=absent)
    content = json.loads((tmp_path / "new" / "gpu.json").read_text())
    assert content["machine"] == facts and content["absent"] == absent and content["rows"][0]["verdict"] == "MISSED"
    write_markdown(rows, tmp_path / "page.md", "Measured on a GPU", gpu_run.INTRO, facts, gpu_run.absences(absent))
    page = (tmp_path / "page.md").read_text()
    assert "| against a peer | 0.5 x | 1 |  | MISSED |  |" in page and "| all | p | not installed |" in page


def test_interleaving():
    order = []
    calls = {name: [lambda name=name: order.append(name)] * 2 for name in "ab"}
    measured = interleave(calls, 2, HostTimer())
    assert "".join(order) == "aabb" * 3  # a warm-up, then the rounds
    assert len(measured["a"].rounds) == 2


def test_buffers_exceed_l2(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=50 * 2**20))
    gpu = torch.device("cuda")
    assert [num_buffers(gpu, size * 2**20) for size in (1, 40, 75, 2000)] == [16, 4, 2, 1]
    assert num_buffers(CPU, 1) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [((None, False, "nvcc"), "has no CUDA"), (("13.0", False, "nvcc"), "there is no GPU"),
     (("13.0", True, None), "no nvcc"), (("13.0", True, "nvcc"), None)],
)  # fmt: skip
def test_what_make_gpu_says(arguments, message):
    reason = gpu_check.reason(*arguments)
    assert reason is None if message is None else message in reason
