"""The picture of docs/performance.md: what stands between a floor and a prediction."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = {
    "floor: datasheet": "#1b3a57",
    "what mma.sync and copies reach": "#4d7ea8",
    "masked and padded pairs": "#9ec1cf",
    "softmax, shared memory, waits": "#f2c14e",
    "waves": "#e07a5f",
    "merge and launches": "#8d5a97",
}


def steps(explanation):
    """Seconds at each of STEPS: each adds one thing that the floor leaves out."""
    chip, f = explanation.chip, explanation.forward
    copy = f.moved_bytes / (chip.reached_copy_gbs * 1e9)
    reached = chip.sustained * chip.mma_tflops * 1e12
    at = [
        f.floor,
        max(f.operations / reached, copy),
        max(f.operations / f.useful_pairs * f.computed_pairs / reached, copy),
        max(f.busy_seconds, copy),
        f.tile_seconds,
        f.predicted,
    ]
    return [max(at[: i + 1]) for i in range(len(at))]


def draw(explanations, path: Path):
    """`explanations`: {workload: {chip: Explanation}}; one group of bars a workload, one bar a chip."""
    figure, axes = plt.subplots(figsize=(9, 0.55 * sum(len(chips) for chips in explanations.values()) + 1.6))
    y, ticks, labels = 0.0, [], []
    for workload, chips in explanations.items():
        axes.text(0.02, y - 0.75, workload, fontsize=10, fontweight="bold", va="center")
        for chip, explanation in chips.items():
            times = steps(explanation)
            left = 0.0
            for (name, color), time in zip(STEPS.items(), times, strict=True):
                axes.barh(y, time / times[0] - left, left=left, color=color, height=0.7, label=name)
                left = time / times[0]
            seconds = f"{times[-1] * 1e3:,.1f} ms" if times[-1] >= 1e-3 else f"{times[-1] * 1e6:,.0f} us"
            axes.text(left + 0.03, y, f"{seconds}, bound by {explanation.forward.bound}", va="center", fontsize=8)
            ticks.append(y)
            labels.append(chip)
            y += 1
        y += 1
    axes.set_yticks(ticks, labels)
    axes.set_ylim(y - 1.2, -1.4)
    axes.set_xlim(0, 1.3 * max(steps(e)[-1] / steps(e)[0] for chips in explanations.values() for e in chips.values()))
    axes.set_xlabel("time over the floor")
    axes.spines[["top", "right"]].set_visible(False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys(), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
