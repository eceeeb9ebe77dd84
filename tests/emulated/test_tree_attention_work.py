"""What tree attention does beside its result: barriers that all matter, copies, products, bank conflicts."""

import pytest
import torch

from attention_cases import make_case
from attention_runs import CONFIGURATIONS, KEY_TILE, tiles_of
from named_trees import grpo_group
from regrow import PrefixTree

ROW_WARPS = {128: 4, 64: 4, 16: 1}
OUTPUTS = pytest.mark.parametrize("partial", [False, True], ids=["16-bit", "fp32"])
LOOP = ["commit_copies", "wait_copies", "sync_block", "commit_copies", "wait_copies", "sync_block", "commit_copies"]


# Both kinds of configuration, with both of their kinds of output; the general form copies more per tile.
@OUTPUTS
@pytest.mark.parametrize("head_dim, rows, options", [(64, 128, {}), (64, 64, {"window": 300}), (64, 16, {}),
                                                     (128, 16, {"softcap": 2.0})], ids=str)  # fmt: skip
def test_each_sync_point_matters(head_dim, rows, options, partial, attention, assert_each_sync_point_matters):
    tree = PrefixTree.from_nodes([-1, 0, 0], [150, 30, 40])
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim, "queries": (200, 216)}
    case = make_case(tree, dtype=torch.bfloat16, partial=partial, **shape, **options)
    runner = attention(rows)
    plan, tiles = tiles_of(runner, case)
    assert len(plan.forward) == 1 and [partial for _, _, partial in tiles] == [False, False, True, True]
    points = assert_each_sync_point_matters(lambda options: runner.arrays(case, options))
    names = [name for _, name in sorted((_line(point), point.split()[1]) for point in points)]
    ending = ["sync_block"] * 2 * (rows == 16) + ["sync_warp"] * (not partial)
    assert names == ending + LOOP  # attention_store.cuh comes before tree_attention.cuh


def _line(point):
    file, line, column = point.split()[0].split(":")
    return file, int(line), int(column)


def _padded(head_dim):
    return next(dim for dim in (64, 128, 256) if head_dim <= dim)


# Extra cycles of an item where warps share 16 rows and hold a quarter of the columns each: they read them back for
# stores of 16 bytes, 8 lanes four rows of two chunks, or two of four, of which the swizzle puts two each into the same
# banks. Once for an item; fp32 results are stored from registers.
STAGED = {64: 16, 128: 32, 256: 0}


# In the general form the mask has depths too; narrower heads are padded, and rows of an odd number of chunks stored.
@pytest.mark.parametrize("head_dim, rows", [*CONFIGURATIONS, (40, 64), (72, 16)])
@pytest.mark.parametrize("options", [{}, {"window": 50}, {"partial": True}], ids=str)
def test_copies_products_and_bank_conflicts(head_dim, rows, options, attention, emulator):
    shape = {"heads": (4, 2), "head_dim": head_dim, "value_dim": head_dim, "queries": (70, 146)}
    case = make_case(grpo_group(), dtype=torch.bfloat16, **shape, **options)
    runner = attention(rows, multiprocessors=2)
    plan, tiles = tiles_of(runner, case)
    report = runner.arrays(case, emulator.Options())[2]
    dim, units, row_warps = _padded(head_dim), 2, ROW_WARPS[rows]
    items = units * sum(bool(item.runs) for item in plan.forward)
    pairs = units * len(tiles)

    masked = units * sum(partial or (tile + 1) * KEY_TILE > case.k.size(0) for _, tile, partial in tiles)
    of_masks = masked * KEY_TILE * (2 if "window" in options else 1)
    assert report.async_copies == items * rows * dim // 8 + pairs * 2 * KEY_TILE * dim // 8 + of_masks
    assert report.instructions["mma"] == pairs * 2 * (rows // 16) * (KEY_TILE // 8) * (dim // 16)
    # Of q one for 16 rows and columns; of k and v one for 16 keys and columns, of each warp.
    keys_of_warp = KEY_TILE * row_warps // 4
    of_warp = rows // row_warps // 16 + 2 * keys_of_warp // 16
    assert report.instructions["ldmatrix"] == pairs * 4 * (dim // 16) * of_warp
    staged = rows == 16 and not case.partial
    assert report.bank_conflicts <= (items * STAGED[dim] if staged else 0)
