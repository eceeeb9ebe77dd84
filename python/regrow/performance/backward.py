"""Floor and prediction of the tree attention's backward on a chip, from a plan; and of the two passes not built."""

from dataclasses import dataclass

import numpy as np

from regrow._load import _C
from regrow.performance import passes
from regrow.performance.memory_kernels import KERNEL_SECONDS
from regrow.performance.turns import Step, run_turns
from regrow.performance.waves import run_waves

# Clocks from asking L2 to having: some 270 when idle on A100 and H100 (arXiv 2402.13499), and the backward asks little.
L2_LATENCY = 300
# Bytes of L2 that one multiprocessor takes in a clock while the others don't.
L2_PORT = 64
COPY_LATENCY = 1000  # kCopyLatency (csrc/kernels/attention_plan.h)
# Loads that all threads wait for at every step: the next query tile's run. Acquiring the turn drops the L1, so it comes
# from L2. (The rank, three loads more, one thread looks up a step ahead, beside the products.)
WALK_LOADS = 1
# And at an item's start: the ticket, and the item through the plan's headers.
START_LOADS = 4


@dataclass(frozen=True)
class Backward:
    """Seconds, bytes and counts of one call. Pairs are (row, key): a row is a query of one head."""

    steps: int  # pairs of tiles, over all heads
    partial_steps: int
    items: int  # blocks that have work
    pieces: int  # items that are parts of a key tile
    useful_pairs: int
    computed_pairs: int
    operations: int
    moved_bytes: int  # q, seen k and v, out, dout, lse, and the gradients: once each
    accumulated_bytes: int  # zeros of the fp32 sums, their conversion, and delta: the kernels around
    kernel_bytes: int  # of memory, by the kernel itself
    waves: float
    busy: float
    waiting: float  # for turns, of the blocks' time
    floor_matmul: float
    floor_copy: float
    step_clocks: dict  # products, operands, multiply, softmax, look_ups, turn
    kernel_seconds: float
    around_seconds: float
    two_passes: float  # seconds, with what is around them
    bound: str

    @property
    def floor(self):
        return max(self.floor_matmul, self.floor_copy)

    @property
    def predicted(self):
        return self.kernel_seconds + self.around_seconds

    @property
    def tflops(self):
        return self.operations / self.predicted / 1e12


class Work:
    """The items of a plan's backward: who visits which query tiles."""

    def __init__(self, words, query_heads, kv_heads):
        plan = _C.plan_backward_work(words)
        self.num_queries, self.num_keys = plan["num_queries"], plan["num_keys"]
        self.seen_keys = self.num_keys - plan["num_unseen"]
        self.tokens, self.keys = plan["query_tile"], plan["key_tile"]
        self.query_heads, self.kv_heads = query_heads, kv_heads
        group, heads = query_heads // kv_heads, min(query_heads // kv_heads, 64)
        while group % heads:
            heads -= 1
        self.heads_of_tile, self.units_of_group = heads, group // heads
        runs = plan["runs"].astype(np.int64)
        self.lengths = runs[:, 1] - runs[:, 0]
        self.partial_tiles = int((self.lengths * runs[:, 2]).sum())
        self.visits = np.zeros(plan["num_query_tiles"] + 1, np.int64)  # key tiles of each query tile
        np.add.at(self.visits, runs[:, 0], 1)
        np.subtract.at(self.visits, runs[:, 1], 1)
        self.visits = np.cumsum(self.visits)[:-1]
        # (key tile, query tiles, each once for each unit of the group), in the plan's order.
        self.items = []
        for key_tile, begin, end in plan["items"].tolist():
            tiles = np.concatenate([np.arange(first, last) for first, last, _ in runs[begin:end].tolist()])
            units = np.arange(self.units_of_group)
            self.items.append((key_tile, (tiles[:, None] * self.units_of_group + units).ravel()))

    @property
    def steps(self):
        return int(self.lengths.sum()) * self.units_of_group * self.kv_heads

    @property
    def pieces(self):
        _, counts = np.unique([key_tile for key_tile, _ in self.items], return_counts=True)
        return int(counts[counts > 1].sum()) * self.kv_heads

    def tickets(self):
        """The items as blocks take them."""
        return self.items[::-1]

    def longest_first(self):
        return sorted(self.items, key=lambda item: -len(item[1]))


def step_of(kernel, head_dim, device, kept=1.0):
    """(Step, {part: clocks}) of the kernel as built. kept: the share of dq that L2 has when it is added to."""
    parts = kernel.clocks(device)
    dim, query_parts = padded(head_dim), passes.query_parts(head_dim)
    # Two halves of 8 rows a warp, each loaded, added to, stored.
    latency = kept * L2_LATENCY + (1 - kept) * COPY_LATENCY
    add = 2 * query_parts * latency + kernel.rows * dim * 4 / L2_PORT
    parts["look_ups"] = WALK_LOADS * L2_LATENCY
    parts["turn"] = L2_LATENCY + add + L2_LATENCY
    return Step(
        work=parts["multiply"] + parts["softmax"] + parts["look_ups"] + (0 if stages_of(dim) > 1 else COPY_LATENCY),
        poll=L2_LATENCY,
        add=add,
        hand_on=L2_LATENCY,
        start=START_LOADS * L2_LATENCY + COPY_LATENCY,
        key_add=key_add(kernel, dim),
    ), parts


def key_add(kernel, dim):
    """Clocks of adding dk and dv: by halves of 8 rows a warp and 64 columns, all from memory."""
    round_trips = 2 * 2 * max(1, min(dim, 128) // 64)
    return round_trips * COPY_LATENCY + 2 * kernel.keys * dim * 4 / L2_PORT


def padded(head_dim):
    return passes.configuration(head_dim)["head_dim"]


def stages_of(head_dim):
    """Of queries in shared memory; with one, a step waits for its copies."""
    return passes.configuration(head_dim)["stages"]


def predict_backward(words, shape, chip, out_size=None, accumulate=False):
    """The backward that `words`, a plan for `chip`, makes of `shape`. accumulate: into sums of the caller's."""
    work = Work(words, shape.query_heads, shape.kv_heads)
    dims, size, widest = shape.head_dim + shape.value_dim, shape.element_size, max(shape.head_dim, shape.value_dim)
    kernel = passes.built(widest)
    step, parts = step_of(kernel, widest, chip.device_class, kept_share(work, shape, chip))
    run = run_turns(work.tickets(), work.kv_heads, chip.multiprocessors, step)

    query_rows, key_rows = work.num_queries * shape.query_heads, work.num_keys * shape.kv_heads
    seen_bytes = work.seen_keys * shape.kv_heads * dims * size
    operands = query_rows * dims * size  # q and dout
    delta_bytes = query_rows * (shape.value_dim * (size + (out_size or size)) + 12)
    moved = operands + query_rows * (shape.value_dim * (out_size or size) + 4) + seen_bytes
    moved += (query_rows * shape.head_dim + key_rows * dims) * (4 if accumulate else size)
    sums = 4 * (query_rows * shape.head_dim + key_rows * dims)
    converted = 0 if accumulate else sums + sums + sums * size // 4
    around_seconds = (1 if accumulate else 8) * KERNEL_SECONDS
    around_seconds += (delta_bytes + converted) / (chip.reached_copy_gbs * 1e9)
    kernel_bytes = kernel_traffic(work, shape, chip)
    kernel_seconds = max(chip.seconds(run.clocks), kernel_bytes / (chip.reached_copy_gbs * 1e9)) + KERNEL_SECONDS
    operations = 2 * shape.useful_pairs * shape.query_heads * (3 * shape.head_dim + 2 * shape.value_dim)
    floor_matmul, floor_copy = chip.floor(operations, moved)
    return Backward(
        steps=work.steps,
        partial_steps=work.partial_tiles * work.units_of_group * work.kv_heads,
        items=len(work.items) * work.kv_heads,
        pieces=work.pieces,
        useful_pairs=shape.useful_pairs * shape.query_heads,
        computed_pairs=work.steps * kernel.rows * kernel.keys,
        operations=operations,
        moved_bytes=moved,
        accumulated_bytes=delta_bytes + converted,
        kernel_bytes=kernel_bytes,
        waves=len(work.items) * work.kv_heads / chip.multiprocessors,
        busy=run.busy,
        waiting=run.waiting,
        floor_matmul=floor_matmul,
        floor_copy=floor_copy,
        step_clocks=parts,
        kernel_seconds=kernel_seconds,
        around_seconds=around_seconds,
        two_passes=sum(two_passes(work, shape, chip, delta_bytes, accumulate).values()),
        bound=_bound(chip, run, kernel_bytes, parts),
    )


def kept_share(work, shape, chip):
    """Of the query tiles, with their dq: how many L2 still has when the next key tile's block comes to them, which
    follows as many steps behind as a key tile has query tiles of its own."""
    rows = work.tokens * work.heads_of_tile
    tile_bytes = rows * ((shape.head_dim + shape.value_dim) * shape.element_size + 4 * shape.head_dim)
    behind = min(work.keys / work.tokens * work.units_of_group, work.steps / max(len(work.items) * work.kv_heads, 1))
    tiles = min(chip.multiprocessors * behind, len(work.visits) * work.units_of_group * work.kv_heads)
    return min(1.0, chip.l2_mib * 2**20 / max(1, tiles * tile_bytes))


def kernel_traffic(work, shape, chip):
    """Bytes of memory: keys, and their sums read and written, once an item; query tiles for each key tile again as far
    as L2 does not keep them, else for as many key tiles as run at once."""
    dims, size = shape.head_dim + shape.value_dim, shape.element_size
    key_bytes = len(work.items) * work.kv_heads * work.keys * dims * (size + 8)
    step_bytes = work.tokens * work.heads_of_tile * (dims * size + 8 * shape.head_dim)
    kept = kept_share(work, shape, chip)
    together = max(1, min(chip.multiprocessors / work.kv_heads, int(work.visits.max(initial=0))))
    return int(key_bytes + work.steps * step_bytes * (kept / together + 1 - kept))


def two_passes(work, shape, chip, delta_bytes, accumulate=False, kernels=None):
    """{pass: seconds}: dk and dv by key tile, then dq by query tile, each with scores and dweights of its own.

    kernels: two Pass, else those that share the built one's warps.
    """
    widest, device = max(shape.head_dim, shape.value_dim), chip.device_class
    keys, queries = kernels or (passes.keys_pass(widest), passes.queries_pass(widest))
    parts = keys.clocks(device)
    own = parts["multiply"] + parts["softmax"] + (0 if stages_of(widest) > 1 else COPY_LATENCY)
    start = START_LOADS * L2_LATENCY + COPY_LATENCY
    step = Step(own, 0, 0, 0, start, key_add(keys, padded(widest)))
    first = run_turns(work.longest_first(), work.kv_heads, chip.multiprocessors, step, ordered=False)

    clocks = queries.clocks_shared(device)
    # Never more blocks than multiprocessors hold; a tile's two waits for copies are the forward's.
    alone = queries.clocks(device)
    alone = max(alone["multiply"] + alone["softmax"], 2 * COPY_LATENCY)
    by_blocks = [max(clocks, alone / n) if n > 1 else alone for n in range(1, queries.blocks + 1)]
    together = queries.rows // 64  # of the plan's query tiles
    lists = np.pad(work.visits, (0, -len(work.visits) % together)).reshape(-1, together).max(1)
    lists = lists[lists > 0] * (work.keys // queries.keys)
    units = work.kv_heads * work.units_of_group
    share = max(8, -(-int(lists.sum()) * units // (2 * chip.multiprocessors * queries.blocks)))
    pieces = [n / -(-n // share) for n in lists.tolist() for _ in range(-(-n // share))]
    waits = 2 * COPY_LATENCY / alone
    second = run_waves(
        np.repeat(sorted(pieces, reverse=True), units) + waits, chip.multiprocessors, queries.blocks, by_blocks
    )

    dims, size = shape.head_dim + shape.value_dim, shape.element_size
    copy = chip.reached_copy_gbs * 1e9
    key_sums = 4 * work.num_keys * shape.kv_heads * dims
    query_rows = work.num_queries * shape.query_heads
    key_bytes = len(work.items) * work.kv_heads * work.keys * dims * (size + 8) + query_rows * dims * size
    query_bytes = query_rows * (2 * dims * size) + work.seen_keys * shape.kv_heads * dims * size
    converted = 0 if accumulate else 2 * key_sums + key_sums * size // 4
    return {
        "keys": max(chip.seconds(first.clocks), key_bytes / copy) + KERNEL_SECONDS,
        "queries": max(chip.seconds(second.clocks), query_bytes / copy) + KERNEL_SECONDS,
        "around": (delta_bytes + converted) / copy + (1 if accumulate else 6) * KERNEL_SECONDS,
    }


def _bound(chip, run, kernel_bytes, parts):
    if kernel_bytes / (chip.reached_copy_gbs * 1e9) > chip.seconds(run.clocks):
        return "copy"
    if run.waiting > 0.3:
        return "turns"
    if run.busy < 0.5:
        return "too few items"
    names = {"products": "matmul", "operands": "shared memory", "softmax": "softmax", "turn": "adding dq"}
    return names[max(names, key=parts.get)]
