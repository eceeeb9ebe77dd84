"""Floor and prediction of the tree attention's forward on a chip, from a plan.

The floor knows only operations and bytes. The prediction runs the plan's items on the multiprocessors, with the clocks
of a tile that the planner itself uses (tile_clocks in csrc/kernels/attention_plan.cpp). The backward will be a second
module of this form.
"""

from dataclasses import dataclass

import numpy as np

from regrow._load import _C
from regrow.performance.memory_kernels import KERNEL_SECONDS
from regrow.performance.waves import run_waves

# Waits for memory that an item has and its tiles don't: for its queries and first keys, and for its rows to be stored.
ITEM_WAITS = 2


@dataclass(frozen=True)
class Shape:
    """What a call computes, beside its plan."""

    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    element_size: int
    useful_pairs: int  # (query, key), of one head


@dataclass(frozen=True)
class Forward:
    """Seconds, bytes and counts of one call. Pairs are (row, key): a row is a query of one head."""

    tiles: int  # pairs of tiles, over all heads
    partial_tiles: int
    items: int  # blocks that have work
    pieces: int  # items that are parts of a query tile
    merges: int
    useful_pairs: int
    computed_pairs: int
    operations: int
    moved_bytes: int  # q, seen k and v, out, lse: once each
    l2_bytes: int  # keys and values, again for each query tile
    workspace_bytes: int  # pieces' results, written and read
    waves: float  # items over blocks that run at once
    busy: float
    floor_matmul: float
    floor_copy: float
    busy_seconds: float  # of the tiles, were all multiprocessors busy all the time and memory no limit
    tile_seconds: float
    merge_seconds: float
    bound: str  # what a faster one would shorten the prediction

    @property
    def floor(self):
        return max(self.floor_matmul, self.floor_copy)

    @property
    def predicted(self):
        return self.tile_seconds + self.merge_seconds

    @property
    def tflops(self):
        """Useful ones, as predicted."""
        return self.operations / self.predicted / 1e12


def predict_forward(words, shape, rows, chip, out_size=None):
    """The forward that `words`, a plan of the configuration with `rows` rows, makes of `shape` on `chip`."""
    work = _C.plan_work(words)
    tile = _C.tile_clocks(max(shape.head_dim, shape.value_dim), rows, chip.compute_capability, chip.multiprocessors)
    heads = _C.cuda_tiles(shape.query_heads, shape.kv_heads, rows, chip.multiprocessors)[4]
    units, dims = shape.query_heads // heads, shape.head_dim + shape.value_dim
    num_queries, seen_keys = work["num_queries"], work["num_keys"] - work["num_unseen"]
    item_tiles = work["item_tiles"]
    tiles = int(item_tiles.sum()) * units
    pieces = int(work["merge_pieces"].sum()) * units

    out_bytes = num_queries * shape.query_heads * shape.value_dim * (out_size or shape.element_size)
    query_bytes = num_queries * shape.query_heads * (shape.head_dim * shape.element_size + 4) + out_bytes
    moved = query_bytes + seen_keys * shape.kv_heads * dims * shape.element_size
    piece_rows = min(work["query_tile"], num_queries) * heads
    piece_bytes = pieces * piece_rows * (shape.value_dim + 1) * 4

    resident, waits = tile["resident"], ITEM_WAITS * tile["copy_latency"]
    run = run_waves(
        np.repeat(item_tiles[item_tiles > 0] + waits / tile["alone"], units),
        chip.multiprocessors,
        resident,
        tile["with_blocks"],
        (moved + piece_bytes) / max(tiles, 1),
        chip.reached_copy_gbs / chip.sustained_ghz,
    )
    merge_seconds = 0.0
    if pieces:
        merge_seconds = KERNEL_SECONDS + piece_bytes / (chip.reached_copy_gbs * 1e9)
    floor_matmul, floor_copy = chip.floor(2 * shape.useful_pairs * shape.query_heads * dims, moved)
    return Forward(
        tiles=tiles,
        partial_tiles=work["partial_tiles"] * units,
        items=int((item_tiles > 0).sum()) * units,
        pieces=pieces,
        merges=len(work["merge_pieces"]) * units,
        useful_pairs=shape.useful_pairs * shape.query_heads,
        computed_pairs=tiles * rows * work["key_tile"],
        operations=2 * shape.useful_pairs * shape.query_heads * dims,
        moved_bytes=moved,
        l2_bytes=tiles * work["key_tile"] * dims * shape.element_size,
        workspace_bytes=piece_bytes,
        waves=len(item_tiles) * units / (chip.multiprocessors * resident),
        busy=run.busy,
        floor_matmul=floor_matmul,
        floor_copy=floor_copy,
        busy_seconds=chip.seconds(tiles * tile["with_blocks"][-1] / chip.multiprocessors),
        tile_seconds=chip.seconds(run.clocks) + KERNEL_SECONDS,
        merge_seconds=merge_seconds,
        bound=_bound(tile, run),
    )


def _bound(tile, run):
    if run.copy_bound > 0.5:
        return "copy"
    if run.busy < 0.5:
        return "too few items"
    if tile["alone"] / tile["resident"] >= tile["with_blocks"][-1]:
        return "latency of copies"
    parts = {"products": "matmul", "operands": "shared memory", "softmax": "softmax", "keys": "L2"}
    return parts[max(parts, key=tile.get)]
