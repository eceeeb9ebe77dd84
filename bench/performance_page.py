"""Writes docs/performance.md and its picture from the model: python bench/performance_page.py [--out docs]."""

import argparse
import random
from pathlib import Path

import performance_backward as backward
import torch
from performance_format import indent, table, time
from performance_picture import draw

import regrow
from regrow._load import _C
from regrow.performance import CHIPS, workloads
from regrow.performance.forward import Shape, predict_forward
from regrow.performance.memory_kernels import gather, logits_rows, lse_merge, scatter
from regrow.performance.published import POINTS, modelled_tflops

CHIPS_SHOWN = ("H20", "H200", "A100")
CALLS = {
    "GRPO: 8 x 1,024 over 32,768": workloads.grpo(),
    "conversation of depth 8": workloads.conversation(),
    "verification: 32 x 16 drafts over 16,384": workloads.verification(),
}
MORE_CALLS = {
    "decoding: 64 x 1 over 8,192": workloads.decoding(),
    "decoding: 1 over 131,072": workloads.long_decoding(),
    "prefill of 4,096": workloads.prefill(),
    "prefill of 131,072": workloads.prefill(131_072),
}
SHORTER_CALL = {"prefill of 4,096": MORE_CALLS["prefill of 4,096"]}
HIDDEN, VOCABULARY = 4096, 151_936


def explain(call, chip, **options):
    tree, index = call
    return regrow.explain(tree, workloads.HEADS, workloads.DIM, torch.bfloat16, chip, query_index=index, **options)


def chip_table():
    def row(chip):
        per_clock = chip.device_class["matmul_per_clock"]
        return (
            chip.name, chip.multiprocessors, chip.clock_ghz, f"{chip.dense_tflops:g}",
            f"{chip.mma_tflops:.0f} ({per_clock} a clock)", chip.sustained, f"{chip.copy_gbs:,}",
            f"{chip.reached_copy_gbs:,.0f}", f"{chip.l2_mib:g}",
        )  # fmt: skip

    header = (
        "chip", "multiprocessors", "GHz", "dense TFLOP/s", "of mma.sync", "sustained", "GB/s", "of a copy", "L2, MiB",
    )  # fmt: skip
    return table(header, [row(chip) for chip in CHIPS.values()])


def published_table():
    groups = {}
    for point in POINTS:
        key = (point.chip, point.source, point.head_dim, "causal" if point.causal else "full")
        groups.setdefault(key, {})[point.length] = point
    lengths = sorted({point.length for point in POINTS})

    def cell(point):
        if point is None:
            return ""
        model = modelled_tflops(point)
        return f"{point.tflops:.0f} / {model:.0f} ({model / point.tflops - 1:+.0%})"

    rows = [(*key, *(cell(points.get(length)) for length in lengths)) for key, points in groups.items()]
    return table(("chip", "kernel", "head dim", "mask", *(f"{length:,}" for length in lengths)), rows)


def kernel_rows(call):
    """Of one workload: the attention, and the other kernels with a row for each of its queries."""
    tree, index = call
    queries = tree.num_tokens if index is None else index.numel()
    for name in CHIPS_SHOWN:
        f, chip = explain(call, name).forward, CHIPS[name]
        yield (
            "tree attention", name, time(f.floor_matmul), time(f.floor_copy), time(f.predicted),
            f"{f.predicted / f.floor:.2f}", f.bound,
        )  # fmt: skip
        others = {
            "lse_merge of 2": lse_merge(chip, 2, queries, workloads.HEADS[0], workloads.DIM),
            "gather": gather(chip, queries, 2 * HIDDEN),
            "scatter": scatter(chip, queries, queries, 2 * HIDDEN),
            "rows of logits": logits_rows(chip, queries, VOCABULARY),
        }
        for kernel, cost in others.items():
            over = f"{cost.predicted / cost.floor:.2f}"
            yield kernel, name, "", time(cost.floor), time(cost.predicted), over, cost.bound


def kernel_tables():
    header = ("kernel", "chip", "floor by matmul", "floor by copy", "predicted", "over the floor", "bound by")
    return "\n\n".join(f"### {name}\n\n{table(header, kernel_rows(call))}" for name, call in CALLS.items())


def with_waves(call, chip, rows, waves):
    """The prediction with a fixed number of waves."""
    tree, index = call
    queries, keys, most, min_tiles, _ = _C.cuda_tiles(*workloads.HEADS, rows, chip.multiprocessors)
    most_waves = 2 if rows == 128 else 4
    words = _C.build_tiled_plan(
        tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), None if index is None else index.numpy(), 0,
        tree.num_tokens, 0, tree.num_tokens, 0, queries, keys, most * waves // most_waves, min_tiles,
    )  # fmt: skip
    pairs = explain(call, chip.name).forward.useful_pairs // workloads.HEADS[0]
    shape = Shape(*workloads.HEADS, workloads.DIM, workloads.DIM, 2, pairs)
    return predict_forward(words, shape, rows, chip).predicted


def planner_table():
    rows = []
    for name, call in (CALLS | MORE_CALLS).items():
        for chip in map(CHIPS.get, CHIPS_SHOWN):
            chosen = explain(call, chip.name)
            fixed = [
                time(with_waves(call, chip, chosen.rows, waves)) if waves <= (2 if chosen.rows == 128 else 4) else ""
                for waves in (1, 2, 4)
            ]
            f = chosen.forward
            rows.append(
                (name, chip.name, chosen.rows, f"{f.waves:.1f}", f"{f.busy:.0%}", time(f.predicted), *fixed,
                 f"{f.workspace_bytes / 1e6:.0f}")
            )  # fmt: skip
    header = (
        "call", "chip", "rows", "waves", "busy", "predicted", "cut for 1 wave", "2", "4", "pieces' results, MB",
    )  # fmt: skip
    return table(header, rows)


def drafts_table():
    rng = random.Random(0)
    cases = {
        "16 each": [16] * 32,
        "12 each": [12] * 32,
        "9 to 16": [rng.randint(9, 16) for _ in range(32)],
        "1 to 16": [rng.randint(1, 16) for _ in range(32)],
    }
    rows = []
    for name, drafts in cases.items():
        call = workloads.verification(drafts)
        for chip in CHIPS_SHOWN:
            f = explain(call, chip, rows=64).forward
            once = 32 * 257 * workloads.HEADS[1]  # each sequence's keys by one tile
            rows.append(
                (name, chip, f"{f.tiles / once:.2f}", f"{f.useful_pairs / f.computed_pairs:.0%}", time(f.predicted))
            )
    return table(("drafts", "chip", "tiles over the least", "useful pairs", "predicted, 64 rows"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    out = parser.parse_args().out
    template = (Path(__file__).parent / "performance_page.md").read_text()
    parts = {
        "chips": chip_table(),
        "published": published_table(),
        "kernels": kernel_tables(),
        "planner": planner_table(),
        "drafts": drafts_table(),
        "backward steps": backward.steps_table(CHIPS_SHOWN),
        "backward": backward.backward_table(CALLS | SHORTER_CALL, CHIPS_SHOWN, explain),
        "backward published": backward.published_table(),
        "backward orders": backward.orders_table(),
        "backward cuts": backward.cuts_table(CALLS | SHORTER_CALL, CHIPS_SHOWN),
        "backward variants": backward.variants_table(CALLS["GRPO: 8 x 1,024 over 32,768"], CHIPS_SHOWN),
        "backward example": indent(str(explain(CALLS["conversation of depth 8"], "H20", backward=True))),
        "example": indent(str(explain(CALLS["verification: 32 x 16 drafts over 16,384"], "H200"))),
    }
    for name, text in parts.items():
        template = template.replace(f"<!-- {name} -->", text)
    (out / "performance.md").write_text(template)
    shown = CALLS | {name: MORE_CALLS[name] for name in list(MORE_CALLS)[:2]}
    draw(
        {name: {chip: explain(call, chip) for chip in CHIPS_SHOWN} for name, call in shown.items()},
        out / "performance.png",
    )


if __name__ == "__main__":
    main()
