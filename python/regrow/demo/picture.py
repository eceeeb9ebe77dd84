"""The demo's picture: what was learned, the tree that was trained on, and what it saved."""

import matplotlib
import numpy as np
import torch
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from regrow.plot_tree import node_rectangles

PACKED, REPLICATED, HELDOUT = "#1b7f5c", "#9aa5b1", "#d98c00"
WAYS = {"replicated": REPLICATED, "packed": PACKED, "replayed": "#5bb08c"}
LEDGER = {
    "weights": ("weights", "#c9d1d9"), "gradients": ("their gradients", "#8d99a6"), "path_kv": ("path K/V", "#d98c00"),
    "path_kv_gradients": ("its gradients", "#f2b134"), "rest": ("activations + logits or workspace", PACKED),
}  # fmt: skip
KINDS = {"examples": PACKED, "question": "#f2b134", "response": "#8fd0b3"}
SMOOTHING = 5
SHOWN_SHARE = 0.5  # of what all sequences share, in lengths of the rest


def draw(report, batch, path):
    """Writes the picture of a report (demo/report.json) and of the batch that was compared as PNG to `path`."""
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(14, 11.5), dpi=110, layout="constrained")
        panels = figure.subplot_mosaic([
            ["rewards", "rewards", "seconds", "bytes"],
            ["tree", "tree", "ledger", "ledger"],
            ["speed", "speed", "choice", "choice"],
        ])  # fmt: skip
        settings = report["settings"]
        figure.suptitle(
            f"{settings['model']} learns {settings['task']}: GRPO on prefix trees, {settings['threads']} CPU thread(s)",
            fontweight="bold",
        )
        draw_rewards(panels["rewards"], report)
        draw_tree(panels["tree"], batch)
        ratio = report["token_ratio"]
        draw_bars(
            panels["seconds"], report["seconds"], "s",
            f"one update, fp32: {report['speedup']:.1f} x faster\n(of {ratio:.1f} x fewer tokens)",
        )  # fmt: skip
        peaks = {name: count / 1e9 for name, count in report["peak_bytes"].items()}
        draw_bars(
            panels["bytes"], peaks, "GB",
            f"live bytes at its peak: {peaks['replicated'] / peaks['packed']:.1f} x fewer\n"
            "(beyond weights, with gradients)",
        )  # fmt: skip
        draw_ledger(panels["ledger"], report)
        draw_speed(panels["speed"], report["rollout"])
        draw_choice(panels["choice"], report["rollout"]["trace"])
        figure.savefig(path, format="png")


def draw_rewards(axes, report):
    rewards, heldout = report["rewards"], report["heldout"]
    steps = np.arange(1, len(rewards) + 1)
    axes.plot(steps, rewards, "o", color=PACKED, alpha=0.45, label="a step's mean reward")
    if len(rewards) >= SMOOTHING:
        smooth = np.convolve(rewards, np.full(SMOOTHING, 1 / SMOOTHING), "valid")
        axes.plot(steps[SMOOTHING - 1 :], smooth, color=PACKED, lw=2.5, label=f"mean of the last {SMOOTHING}")
    ends = np.array([0.5, len(rewards) + 0.5])
    axes.plot(ends, [heldout["before"], heldout["after"]], "D--", color=HELDOUT, lw=1, ms=8, label="held-out, greedy")
    for x, name, side in zip(ends, ("before", "after"), ("left", "right"), strict=True):
        offset = (8, 6) if side == "left" else (-8, 8)
        axes.annotate(f"{heldout[name]:.2f}", (x, heldout[name]), offset, textcoords="offset points", ha=side)
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.05))
    axes.set_title("reward", fontsize=10)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(loc="lower right", frameon=False)


def draw_tree(axes, batch):
    """Every node as a box from its first position to its last; its prompt tokens and its response tokens apart."""
    tree = batch.tree()
    response = torch.zeros(tree.num_tokens, dtype=torch.bool)
    response[tree.gather_index[torch.cat(batch.response_masks)]] = True
    responses_before = np.concatenate([[0], response.numpy().cumsum()])
    in_response = np.diff(responses_before[tree.node_start.numpy()])
    leaf, below, depth, length = node_rectangles(tree)
    leaves, end = (leaf + below).max(), (depth + length).max()
    fork = int(depth[below < leaves].min(initial=end))

    prompt_kind = np.where(below == leaves, "examples", "question")
    boxes = [
        (begin, stop, low, high, KINDS[kind])
        for first, last, share, low, high, kinds in zip(
            depth, depth + length, in_response, leaf, leaf + below, prompt_kind, strict=True
        )
        for begin, stop, kind in ((first, last - share, str(kinds)), (last - share, last, "response"))
        if stop > begin
    ]
    corners = [[(begin, low), (stop, low), (stop, high), (begin, high)] for begin, stop, low, high, _ in boxes]
    colors = [color for *_, color in boxes]
    axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors="white", linewidths=1))
    # What all share is long and dull: most of it stays outside, on the left.
    start = max(0, fork - SHOWN_SHARE * (end - fork))
    axes.set(xlim=(start, end), ylim=(leaves, 0), xlabel="position", ylabel="different responses")
    axes.yaxis.get_major_locator().set_params(integer=True)
    text = f"\N{LEFTWARDS ARROW} {fork} tokens\nshared by all"
    axes.annotate(text, ((start + fork) / 2, leaves / 2), ha="center", va="center", color="white", fontweight="bold")
    axes.set_title(
        f"the tree: {tree.num_tokens:,} tokens instead of {batch.num_tokens:,} for {len(batch.sequences)} sequences",
        fontsize=10,
    )
    for name, color in KINDS.items():
        axes.plot([], [], "s", color=color, ms=9, label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(KINDS), frameon=False)


def draw_bars(axes, values, unit, title):
    for y, (name, color) in enumerate(WAYS.items()):
        axes.barh(y, values[name], color=color, height=0.6)
        axes.annotate(f"{values[name]:.3g} {unit}", (values[name], y), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(WAYS)), list(WAYS))
    axes.set_ylim(len(WAYS) - 0.4, -0.6)
    axes.set_xlim(0, 1.35 * max(values[name] for name in WAYS))
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=10)


def draw_ledger(axes, report):
    """Two stacks of bytes for each way, predicted above measured."""
    settings, rows = report["settings"], []
    for way, found in report["ledger"].items():
        for column in ("predicted", "measured"):
            begin = 0.0
            for line, (_, color) in LEDGER.items():
                gigabytes = found[line][column] / 1e9
                axes.barh(len(rows), gigabytes, left=begin, color=color, height=0.7)
                begin += gigabytes
            axes.annotate(f"{begin:.3f} GB", (begin, len(rows)), (4, 0), textcoords="offset points", va="center")
            rows.append(f"{way},\n{column}")
    widest = max(found["weights"]["measured"] + found["total"]["measured"] for found in report["ledger"].values()) / 1e9
    axes.set_yticks(range(len(rows)), rows)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 1.2 * widest), xlabel="GB")
    sequences, chunk = settings["ledger_sequences"], settings["chunk_tokens"]
    axes.set_title(f"memory of {sequences} sequences in one pass, and {chunk} tokens at a time", fontsize=10)
    for name, color in LEDGER.values():
        axes.plot([], [], "s", color=color, ms=9, label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=3, frameon=False)


def draw_speed(axes, rollout):
    """Tokens a second of each rollout, and on the right how many tokens a sequence gains by a step."""
    numbers = np.arange(1, 1 + len(rollout["tokens"]))
    axes.plot(numbers, rollout["tokens_per_second"], "o-", color=PACKED, ms=3)
    axes.set(xlabel="rollout", ylabel="tokens a second", ylim=(0, None))
    axes.yaxis.label.set_color(PACKED)
    axes.xaxis.get_major_locator().set_params(integer=True)
    right = axes.twinx()
    right.plot(numbers, rollout["acceptance_length"], "D-", color=HELDOUT, ms=3)
    right.set(ylabel="acceptance length", ylim=(1, max(1.2, 1.1 * max(rollout["acceptance_length"]))))
    right.yaxis.label.set_color(HELDOUT)
    axes.set_title("rollouts", fontsize=10)


def draw_choice(axes, trace):
    """Sequences alive in each step, and the tokens that were drafted for them: how many were accepted."""
    steps = np.arange(1, 1 + len(trace))
    live, drafted, accepted = ([step[name] for step in trace] for name in ("live", "drafted", "accepted"))
    axes.step(steps, live, where="mid", color=REPLICATED, lw=2, label="sequences")
    axes.bar(steps, drafted, color="#f2b134", width=0.9, label="drafted tokens")
    axes.bar(steps, accepted, color=PACKED, width=0.9, label="accepted")
    axes.set(xlabel="step", ylabel="sequences, tokens")
    axes.set_title("what the last rollout chose", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
