"""The report's numbers as rich tables."""

from rich.table import Table

WAYS = ("replicated", "packed", "replayed")
LINES = {
    "weights": "weights", "gradients": "parameters' gradients", "path_kv": "path K/V",
    "path_kv_gradients": "gradients of path K/V", "activations": "activations of a chunk", "logits": "logits",
    "workspace": "workspace", "rest": "activations + logits or workspace", "total": "total beyond the weights",
}  # fmt: skip


def tables(report):
    ledgers = [ledger_table(report, way) for way in WAYS[1:]]
    return [comparison_table(report), *ledgers, rollout_table(report), learning_table(report)]


def comparison_table(report):
    chunk = report["settings"]["chunk_tokens"]
    result = new_table("one GRPO update, the same data, fp32", *WAYS)
    result.caption = f"packed: one pass; replayed: {chunk} tokens at a time"
    tokens, seconds, loss, gradient = (report[key] for key in ("tokens", "seconds", "loss", "gradient"))
    stats = [report["replay"][way] for way in WAYS[1:]]
    result.add_row("tokens", f"{tokens['dense']:,}", *[f"{tokens['packed']:,}"] * 2)
    result.add_row("segments", "", *(f"{found['segments']}" for found in stats))
    result.add_row("tokens through a forward alone", "", *(f"{found['forward_tokens']:,}" for found in stats))
    result.add_row("seconds", *(f"{seconds[way]:.2f}" for way in WAYS))
    speedups = report["speedup"], report["speedup_replayed"]
    result.add_row(f"times faster, of {report['token_ratio']:.2f}", "", *(f"{speedup:.2f}" for speedup in speedups))
    result.add_row("live MB at the peak, beyond weights", *(megabytes(report["peak_bytes"][way]) for way in WAYS))
    result.add_row("loss", *(f"{loss[way]:.7f}" for way in WAYS))
    limit = f"gradient, relative L2 to fp64 (limit {gradient['limit']:.0e})"
    result.add_row(limit, *(f"{gradient[way]:.2e}" for way in WAYS))
    return result


def ledger_table(report, way):
    settings = report["settings"]
    how = "in one pass" if way == "packed" else f"{settings['chunk_tokens']} tokens at a time"
    title = f"{settings['ledger_sequences']} sequences {how}, fp32: MB at the peak"
    result = new_table(title, "predicted", "measured", "ratio")
    for line, name in LINES.items():
        if line == "rest":
            result.add_section()
        entry = report["ledger"][way][line]
        measured, ratio = entry["measured"], entry["ratio"]
        result.add_row(
            name,
            megabytes(entry["predicted"]),
            "" if measured is None else megabytes(measured),
            "" if ratio is None else f"{ratio:.3f}",
        )
    return result


def rollout_table(report):
    rollout = report["rollout"]
    result = new_table(f"{len(rollout['tokens'])} rollouts, speculating where it pays", "first", "last", "all")
    steps, tokens = sum(rollout["steps"]), sum(rollout["tokens"])
    seconds = sum(count / rate for count, rate in zip(rollout["tokens"], rollout["tokens_per_second"], strict=True))
    rates, lengths = rollout["tokens_per_second"], rollout["acceptance_length"]
    result.add_row("tokens a second", f"{rates[0]:,.0f}", f"{rates[-1]:,.0f}", f"{tokens / seconds:,.0f}")
    result.add_row("acceptance length", f"{lengths[0]:.2f}", f"{lengths[-1]:.2f}", "")
    drafting = rollout["steps_that_draft"]
    shares = [f"{drafting[i]} of {rollout['steps'][i]}" for i in (0, -1)]
    result.add_row("steps that drafted", *shares, f"{sum(drafting)} of {steps}")
    drafted, accepted = sum(rollout["drafted"]), sum(rollout["accepted"])
    result.caption = f"{tokens:,} tokens; {drafted:,} drafted, {accepted:,} of them accepted"
    return result


def learning_table(report):
    rewards, learning, heldout = report["rewards"], report["learning"], report["heldout"]
    result = new_table(f"{len(rewards)} replayed updates, policy in {report['settings']['dtype']}", "before", "after")
    first, last = report["reward_first_five"], report["reward_last_five"]
    result.add_row("mean reward, first and last five steps", f"{first:.3f}", f"{last:.3f}")
    result.add_row("held-out questions, greedy", f"{heldout['before']:.3f}", f"{heldout['after']:.3f}")
    dense, packed = (sum(learning["tokens"][name]) for name in ("dense", "packed"))
    replayed = learning["replay"]
    forward, segments = sum(replayed["forward_tokens"]), sum(replayed["segments"])
    result.caption = (
        f"{dense:,} tokens of sequences, {packed:,} of trees in {segments} segments; {forward:,} ran forward once more"
    )
    return result


def new_table(title, *headings):
    result = Table(title=title, title_justify="left", caption_justify="left")
    result.add_column("")
    for heading in headings:
        result.add_column(heading, justify="right")
    return result


def megabytes(count):
    return f"{count / 1e6:,.0f}"
