"""Live bytes of an update: flat in the group's size and in the responses' length, and as predicted."""

import time

from replay_cases import load_smollm2, question_case, random_case, small_model
from report import Row

from regrow import replay
from regrow.live_bytes import measure_bytes


def run():
    return [*flat(), *predicted()]


def flat():
    """SmolLM2, segments of 128 tokens, all full: what grows is the path's own."""
    model, tokenizer = load_smollm2()
    workload = "live bytes at the peak beyond the path's K/V and gradients, SmolLM2 fp32, prompt 1,024"
    beyond = {}
    for group, length in ((2, 128), (8, 128), (2, 512)):
        case = question_case(tokenizer, prompt_tokens=1024, group=group, response_tokens=length)
        peak, stats, _ = measure(model, case, chunk_tokens=128, prefix_grad="exact")
        beyond[group, length] = peak - stats.kv_bytes - stats.kv_gradient_bytes
    base = beyond[2, 128]
    grown = {"group 8 over 2": beyond[8, 128], "responses x 4": beyond[2, 512]}
    rows = [Row(workload, "group 2, 2 x 128", base / 1e6, "MB")]
    return rows + [
        Row(workload, name, 100 * (value / base - 1), "% more", bar=0.3, lower=True) for name, value in grown.items()
    ]


def predicted():
    """The ledger against the profiler, SmolLM2 with and without gradient checkpointing."""
    model, tokenizer = load_smollm2()
    case = question_case(tokenizer, prompt_tokens=1024, group=4, response_tokens=128)
    rows = []
    for chunk_tokens in (256, 1024):
        rows += ledger_rows(f"SmolLM2 fp32, chunks of {chunk_tokens:,}", model, case, chunk_tokens)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return rows + ledger_rows("SmolLM2 fp32, chunks of 1,024, checkpointed", model, case, 1024)


def long():
    """The largest paths: one full-attention layer and three windowed ones in bf16."""
    model, rows = small_model(), []
    for positions, group, prefix_grad in ((262_144, 2, "detached"), (262_144, 8, "detached"), (65_536, 8, "exact")):
        name = f"{prefix_grad} update at {positions:,} positions, group {group}"
        rows += ledger_rows(name, model, random_case(positions, group), 4096, prefix_grad, bar=5)
    return rows


def ledger_rows(workload, model, case, chunk_tokens, prefix_grad="exact", bar=None):
    tree, objective = case.tree, case.objective
    ledger = replay.predict(model, tree, objective, chunk_tokens=chunk_tokens, prefix_grad=prefix_grad)
    peak, stats, seconds = measure(model, case, chunk_tokens=chunk_tokens, prefix_grad=prefix_grad)
    lines = ", ".join(f"{name} {value / 1e6:.1f}" for name, value in ledger.rows())
    off = 100 * abs(ledger.total / peak - 1)
    return [
        Row(workload, "time", seconds, "s", note=f"{stats.segments} segments"),
        Row(workload, "live bytes beyond the weights, predicted", ledger.total / 1e6, "MB", note=f"MB: {lines}"),
        Row(workload, "measured", peak / 1e6, "MB"),
        Row(workload, "prediction off by", off, "%", bar=bar, lower=True),
    ]


def measure(model, case, **options):
    """(peak bytes, stats, seconds) of one update; the seconds include the counting of bytes."""
    tree, objective = case.tree, case.objective
    objective.where(tree)  # an objective keeps what it finds out about a tree: those bytes are not the update's
    began = time.perf_counter()
    measured = measure_bytes(lambda: replay.backward(model, tree, objective, **options))
    model.zero_grad(set_to_none=True)
    return measured.peak, measured.result.stats, time.perf_counter() - began
