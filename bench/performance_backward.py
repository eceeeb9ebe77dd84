"""The tables of docs/performance.md on the backward."""

from dataclasses import replace

from performance_format import table, time

from regrow._load import _C
from regrow.performance import CHIPS, passes, workloads
from regrow.performance.backward import (
    L2_LATENCY,
    L2_PORT,
    WALK_LOADS,
    Work,
    kept_share,
    step_of,
    two_passes,
)
from regrow.performance.forward import Shape
from regrow.performance.published import (
    BACKWARD_POINTS,
    FROM_THE_LEFT,
    FROM_THE_RIGHT,
    UNORDERED,
    modelled_backward_tflops,
    modelled_orders,
)
from regrow.performance.turns import run_turns

DIM, HEADS = workloads.DIM, workloads.HEADS


def steps_table(chips):
    """Clocks of one step and multiprocessor; the two passes' for as many pairs."""

    def row(chip):
        device = CHIPS[chip].device_class
        _, built = step_of(passes.built(DIM), DIM, device)
        queries = passes.queries_pass(DIM)
        # A block of the second pass has half the pairs of a step.
        second = 2 * queries.clocks_shared(device)
        keys = passes.keys_pass(DIM).clocks(device)
        one = sum(built[part] for part in ("multiply", "softmax", "look_ups", "turn"))
        first = keys["multiply"] + keys["softmax"]
        shown = (built[part] for part in ("products", "operands", "multiply", "softmax", "look_ups", "turn"))
        return (chip, *(f"{c:,.0f}" for c in (*shown, one, first, second, first + second)))

    header = (
        "chip", "mma", "ldmatrix", "the longer, by phase", "softmax", "look-ups", "turn", "one pass", "dK/dV pass",
        "dQ pass", "two passes",
    )  # fmt: skip
    return table(header, map(row, chips))


def backward_table(calls, chips, explain):
    rows = []
    for name, call in calls.items():
        for chip in chips:
            b = explain(call, chip, backward=True).backward
            floors = time(b.floor_matmul), time(b.floor_copy)
            over, two = f"{b.predicted / b.floor:.2f}", f"{b.two_passes / b.predicted - 1:+.0%}"
            waiting = f"{b.waiting:.0%}"
            rows.append((name, chip, *floors, time(b.predicted), over, waiting, b.bound, time(b.two_passes), two))
    header = (
        "call", "chip", "floor by matmul", "by copy", "predicted", "over the floor", "waiting", "bound by",
        "two passes", "against one",
    )  # fmt: skip
    return table(header, rows)


def published_table():
    rows = []
    for point in BACKWARD_POINTS:
        model = modelled_backward_tflops(point)
        rows.append(
            (point.chip, f"{point.length:,}", f"{point.tflops:.0f}", f"{model:.0f}", f"{model / point.tflops - 1:+.0%}")
        )
    return table(("chip", "tokens", "TFLOP/s published", "model", "off by"), rows)


def orders_table():
    right, left = modelled_orders()
    rows = [
        ("key tiles from the right", f"{FROM_THE_RIGHT / UNORDERED:.2f}", f"{right:.2f}"),
        ("from the left", f"{FROM_THE_LEFT / UNORDERED:.2f}", f"{left:.2f}"),
    ]
    return table(("dQ in order, over unordered", "published", "model"), rows)


def _words(call, items, min_tiles, common_cuts):
    tree, index = call
    return _C.build_tiled_plan(
        tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), None if index is None else index.numpy(), 0,
        tree.num_tokens, 0, tree.num_tokens, 0, 16, 128, items, min_tiles, common_cuts,
    )  # fmt: skip


def cuts_table(calls, chips):
    """The kernel's time, over steps that never wait on multiprocessors that are always busy."""
    rows = []
    for name, call in calls.items():
        for chip in map(CHIPS.get, chips):
            step, _ = step_of(passes.built(DIM), DIM, chip.device_class)

            def over(items, common_cuts, ascending=False, chip=chip, call=call, step=step):
                work = Work(_words(call, items, 8, common_cuts), *HEADS)
                tickets = work.items if ascending else work.tickets()
                run = run_turns(tickets, work.kv_heads, chip.multiprocessors, step)
                ideal = work.steps * (step.work + step.turn) / chip.multiprocessors
                return f"{run.clocks / ideal:.2f} ({run.waiting:.0%})"

            share = chip.multiprocessors / HEADS[1]
            columns = [over(1, False), over(round(4 * share), False)]
            columns += [over(round(n * share), True) for n in (2, 4, 6, 8, 16)]
            rows.append((name, chip.name, *columns, over(round(6 * share), True, ascending=True)))
    header = (
        "call", "chip", "uncut", "equal pieces, 4", "common cuts, 2", "4", "6", "8", "16", "6, from the left",
    )  # fmt: skip
    return table(header, rows)


def variants_table(call, chips):
    """What the kernel would take with one thing changed, at one workload, without what is around it."""
    rows = []
    for chip in map(CHIPS.get, chips):
        tree, index = call
        _, words = _C.build_cuda_plan(
            tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), index, 0, tree.num_tokens, 0,
            tree.num_tokens, 0, *HEADS, DIM, chip.compute_capability, chip.multiprocessors,
        )  # fmt: skip
        work = Work(words, *HEADS)
        kernel, device = passes.built(DIM), chip.device_class
        shape = Shape(*HEADS, DIM, DIM, 2, 0)
        step, parts = step_of(kernel, DIM, device, kept_share(work, shape, chip))

        def seconds(step, chip=chip, work=work):
            return chip.seconds(run_turns(work.tickets(), work.kv_heads, chip.multiprocessors, step).clocks)

        ahead = replace(step, work=step.work - WALK_LOADS * L2_LATENCY)
        reduced = replace(step, add=kernel.rows * DIM * 4 / L2_PORT)
        wide = passes.flash_attention_2(DIM).clocks(device)
        saved = parts["multiply"] + parts["softmax"] - wide["multiply"] - wide["softmax"]
        squarer = replace(step, work=step.work - saved)
        all_of_it = replace(ahead, work=ahead.work - saved, add=reduced.add)
        square = passes.flash_attention_2(DIM, with_queries=False), passes.square_queries_pass(DIM)
        two = [two_passes(work, shape, chip, 0, kernels=kernels) for kernels in (None, square)]
        rows.append(
            (
                chip.name,
                *(time(seconds(s)) for s in (step, ahead, reduced, squarer, all_of_it)),
                *(time(t["keys"] + t["queries"]) for t in two),
            )
        )
    header = (
        "chip", "as built", "the run looked up ahead too", "dQ added by reductions in L2", "warps of 32 x 32 scores",
        "all three", "two passes", "with warps of 32 x 32",
    )  # fmt: skip
    return table(header, rows)
