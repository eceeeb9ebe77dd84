"""What the backward does beside its result: barriers and turns that all matter, copies, products, bank conflicts."""

import pytest
import torch

from attention_cases import make_case
from backward_runs import KEYS, ROWS, forward
from named_trees import grpo_group
from regrow import PrefixTree

START = ["sync_block", "commit_copies", "wait_copies", "sync_block"]
DQ = ["wait_for_turn", "sync_block", "sync_block", "pass_turn"]
END = ["wait_for_turn", "sync_block", "sync_block", "pass_turn"]
# With two stages the next tile's copies are issued before the products, with one after them.
COPIES, DSCORES, NO_DQ = "commit_copies", "sync_block", "sync_block"
LOOPS = {head_dim: [*START, COPIES, DSCORES, *DQ, *END] for head_dim in (64, 128)}
LOOPS[256] = [*START, DSCORES, *DQ, COPIES, *END]
MAIN, SINKS = "tree_attention_backward.cuh", "attention_backward_rows.cuh"


def _case(head_dim, tree=None, **more):
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim, "dtype": torch.bfloat16}
    return make_case(tree or grpo_group(), **shape | more)


def _turning(head_dim, **more):
    """A split key tile, so that dk and dv take turns, and two key tiles, so that dq does: tokens of a large group."""
    heads = 64 if head_dim < 256 else 32
    tokens = ROWS // heads
    queries = 9 * tokens
    tree = PrefixTree.from_nodes([-1, 0], [KEYS[head_dim] - 3, queries])
    first = tree.num_tokens - queries
    return _case(head_dim, tree, heads=(heads, 1), queries=(first, first + queries), **more)


@pytest.mark.parametrize("head_dim, options", [(64, {}), (128, {"softcap": 2.0}), (256, {"window": 300})], ids=str)
def test_each_sync_point_matters(head_dim, options, backward, assert_each_sync_point_matters):
    case = _turning(head_dim, sinks=True, **options)
    runner, given = backward(), forward(case)
    plan = runner.plan(case)
    assert any(item.turn for item in plan.backward) and plan.header.num_key_tiles == 2
    words = runner.words(case)
    points = assert_each_sync_point_matters(lambda options: runner.arrays(case, options, given, words=words))
    assert _names(points, SINKS) == ["sync_block"]
    assert _names(points, MAIN) == LOOPS[head_dim]


def _names(points, file):
    of_file = [point for point in points if point.startswith(file)]
    return [name for _, name in sorted((_place(point), point.split()[1]) for point in of_file)]


def _place(point):
    _, line, column = point.split()[0].split(":")
    return int(line), int(column)


# What one half's barriers cover must not be left to them. (Up to 128 columns, without dq the barrier after dscores has
# no use: nobody reads those of other warps.)
HALVES = [
    (64, ("dq",), [*START, COPIES, DSCORES, *DQ]),
    (256, ("dq",), [*START, DSCORES, *DQ, COPIES]),
    (256, ("dk", "dv"), [*START, DSCORES, NO_DQ, COPIES, *END]),
]


@pytest.mark.parametrize("head_dim, wanted, expected", HALVES, ids=["64-dq", "256-dq", "256-dkdv"])
def test_each_sync_point_of_a_half(head_dim, wanted, expected, backward, assert_each_sync_point_matters):
    case = _turning(head_dim)
    runner, given = backward(), forward(case)
    call = {"words": runner.words(case), "wanted": wanted}
    points = assert_each_sync_point_matters(lambda options: runner.arrays(case, options, given, **call))
    assert _names(points, MAIN) == expected


# The general form's mask has depths too; narrower heads are padded; several units of a group; several KV heads.
SHAPES = [
    (64, {}), (64, {"window": 50}), (40, {"heads": (3, 1)}), (64, {"heads": (96, 1), "queries": (100, 104)}),
    (128, {"heads": (2, 2)}), (72, {"softcap": 2.0}), (256, {}), (256, {"window": 50}), (136, {"heads": (4, 2)}),
]  # fmt: skip


@pytest.mark.parametrize("head_dim, options", SHAPES, ids=str)
def test_copies_products_and_bank_conflicts(head_dim, options, backward, emulator):
    case = _case(head_dim, **options)
    runner = backward()
    plan = runner.plan(case)
    report = runner.arrays(case, emulator.Options())[-1]
    dim = next(d for d in KEYS if head_dim <= d)
    keys, (query_heads, kv_heads) = KEYS[dim], (case.q.size(1), case.k.size(1))
    group = query_heads // kv_heads
    units = next(units for units in range(1, group + 1) if group % units == 0 and group // units <= ROWS)
    blocks = kv_heads * len(plan.backward)
    tiles = kv_heads * units * len(plan.backward_tiles())
    depths = "window" in options or "softcap" in options

    of_block = 2 * keys * dim // 8 + keys * (2 if depths else 1)
    assert report.async_copies == blocks * of_block + tiles * (2 * ROWS * dim // 8 + 2 * ROWS)
    assert report.instructions["mma"] == tiles * 5 * (keys // 16) * (ROWS // 8) * (dim // 16)
    # Two products whose operand a warp loads for its 16 keys, with rows of its own; two with columns of its own and of
    # weights and dscores nothing, or where warps share keys 16 rows at a time; one of 16 rows against half the columns.
    shared = dim == 256
    warps, row_blocks, column_blocks = 8, ROWS // (32 if shared else 16), dim // (32 if shared else 16)
    scores = 2 * dim // 16 * (1 + row_blocks)
    sums = 2 * ROWS // 16 * (column_blocks + shared)
    parts = 2 if shared else 1
    of_dq = keys // 16 * (parts + dim // 32)
    assert report.instructions["ldmatrix"] == tiles * warps * (scores + sums + of_dq)
    assert report.bank_conflicts == 0


def test_tiles_that_nobody_meets_cost_nothing(backward, emulator):
    """Two conversations on one axis: the tiles of one against the other are not there."""
    lengths = [128, 128, 128]
    tree = PrefixTree.from_nodes([-1, -1, -1], lengths)
    case = _case(64, tree)
    report = backward().arrays(case, emulator.Options())[-1]
    tiles = 3 * 2  # each key tile's two query tiles
    assert report.instructions["mma"] == tiles * 5 * 8 * 8 * 4
