"""Published rates of kernels that use mma.sync as ours do, and what the model says of them.

The forward's were measured with 16,384 tokens in all and 2,048 / head_dim heads, and are of FlashAttention-2's form:
tiles of 128 queries and 64 keys, two blocks a multiprocessor, query tiles handed out head by head, the longest last.
"""

from dataclasses import dataclass

import numpy as np

from regrow._load import _C
from regrow.performance import passes
from regrow.performance.backward import COPY_LATENCY, L2_LATENCY
from regrow.performance.chips import CHIPS
from regrow.performance.forward import ITEM_WAITS
from regrow.performance.turns import Step, run_turns
from regrow.performance.waves import run_waves

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Point:
    source: str
    chip: str
    head_dim: int
    causal: bool
    length: int
    tflops: float


# (head dim, causal) -> one rate for each of _LENGTHS: FlashAttention-2 on H100 in the charts of FlashAttention-3
# (arXiv 2407.08608, figure 5), as others have read them.
_H100 = {
    (64, False): (282, 306, 318, 321, 322, 324),
    (64, True): (180, 229, 262, 284, 295, 299),
    (128, False): (309, 350, 362, 368, 370, 370),
    (128, True): (191, 260, 298, 319, 333, 335),
    (256, False): (275, 313, 321, 323, 324, 326),
    (256, True): (208, 251, 278, 293, 297, 298),
}

POINTS = [
    # Abstract of FlashAttention-2 (arXiv 2307.08691): up to 73 % of the theoretical maximum. What `sustained` fits.
    Point("FlashAttention-2", "A100", 128, False, 16384, 0.73 * 312),
    # Lengths are not said; the rates of a wgmma kernel there are 126 and 108, of cuBLAS 142.
    Point("an mma.sync kernel", "H20", 128, False, 4096, 84),
    Point("an mma.sync kernel", "H20", 128, True, 4096, 66),
    *(
        Point("FlashAttention-2", "H100", head_dim, causal, length, tflops)
        for (head_dim, causal), rates in _H100.items()
        for length, tflops in zip(_LENGTHS, rates, strict=True)
    ),
]


def modelled_tflops(point):
    """Of the same tiles in the same order; head dim 256 with our 64 rows for its 128."""
    chip, rows = CHIPS[point.chip], 64 if point.head_dim == 256 else 128
    tile = _C.tile_clocks(point.head_dim, rows, chip.compute_capability, chip.multiprocessors)
    query_tiles, heads = point.length // rows, 2048 // point.head_dim * (16384 // point.length)
    lengths = np.full(query_tiles, point.length / 64)
    if point.causal:
        lengths = np.ceil((np.arange(query_tiles) + 1) * rows / 64)
    waits = ITEM_WAITS * tile["copy_latency"] / tile["alone"]
    run = run_waves(np.tile(lengths + waits, heads), chip.multiprocessors, tile["resident"], tile["with_blocks"])
    operations = 4 * point.length**2 * point.head_dim * heads / (2 if point.causal else 1)
    return operations / chip.seconds(run.clocks) / 1e12


BACKWARD_POINTS = [
    # Abstract of FlashAttention-2: up to 63 % in the backward.
    Point("FlashAttention-2", "A100", 128, False, 16384, 0.63 * 312),
    # Figure 6 of FlashAttention-3, as others have read it.
    *(
        Point("FlashAttention-2", "H100", 128, False, length, tflops)
        for length, tflops in zip(_LENGTHS, (214, 260, 291, 310, 318, 322), strict=True)
    ),
    # Issue 1051 of its repository: one sequence, 8 heads.
    Point("FlashAttention-2", "H100", 128, False, 32768, 337),
]


def modelled_backward_tflops(point):
    """Of FlashAttention-2's backward: blocks own 128 keys and add dq with atomics, which are taken to cost nothing."""
    chip, kernel = CHIPS[point.chip], passes.flash_attention_2(point.head_dim)
    parts = kernel.clocks(chip.device_class)
    step = parts["multiply"] + parts["softmax"]
    heads = 8 if point.length > 16384 else 2048 // point.head_dim * (16384 // point.length)
    blocks = [point.length / kernel.rows + ITEM_WAITS * COPY_LATENCY / step] * (heads * point.length // kernel.keys)
    run = run_waves(blocks, chip.multiprocessors, 1, [step])
    return 10 * point.length**2 * point.head_dim * heads / chip.seconds(run.clocks) / 1e12


# Pull request 1893 of the same repository, FlashAttention-3 on H100: two causal sequences of 8,192, 16 heads of 128;
# milliseconds without an order of dq, with key tiles from the right, and from the left.
UNORDERED, FROM_THE_RIGHT, FROM_THE_LEFT = 2.391, 2.900, 3.804


def modelled_orders():
    """(from the right, from the left) over unordered, of blocks that own 128 keys and walk 64 queries a step, head by
    head. A step takes what the unordered kernel took; a turn is L2's latency to learn of it and to hand it on."""
    chip = CHIPS["H100"]
    tiles = [(key, np.arange(2 * key, 128)) for key in range(64)]
    heads = 32

    def clocks(items, step, ordered):
        # Each head's tiles after the last one's: as so many key and query tiles of one head.
        all_items = [(key + 64 * head, queries + 128 * head) for head in range(heads) for key, queries in items]
        return run_turns(all_items, 1, chip.multiprocessors, step, ordered).clocks

    work = 1e-3 * UNORDERED / chip.seconds(1) / clocks(tiles, Step(1, 0, 0, 0), ordered=False)
    step = Step(work, L2_LATENCY, 0, L2_LATENCY)
    unordered = clocks(tiles, Step(work, 0, 0, 0), ordered=False)
    return clocks(tiles[::-1], step, True) / unordered, clocks(tiles, step, True) / unordered
