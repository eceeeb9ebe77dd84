"""Floor and prediction of the forward, worked by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import regrow
from named_trees import named_trees
from regrow import PrefixTree
from regrow._load import _C
from regrow.performance.chips import CHIPS
from regrow.reference import visible

CHIP = CHIPS["A100"]
TREES = named_trees()


def forward(tree, heads, head_dim=128, device="A100", **options):
    return regrow.explain(tree, heads, head_dim, torch.bfloat16, device, **options).forward


def chain(length):
    return PrefixTree.from_nodes([-1], [length])


# 128 rows x 64 keys x 128: 2 x 128 x 64 x 128 multiply-adds at 1,024 a clock; four warps read 32 KiB of keys and values
# each, and the queries are read once, 128 bytes a clock; 32 KiB at 47 bytes a clock; an exponential of each score at 16
# a clock, 3.5 operations of each, and one of each value of out, at 64.
def test_clocks_of_a_tile():
    tile = _C.tile_clocks(128, 128, 80, 108)
    assert tile["products"] == 2048
    assert tile["operands"] == (4 * 32768 + 32768) / 128
    assert tile["keys"] == pytest.approx(32768 / 47)
    assert tile["softmax"] == 8192 / 16 + (3.5 * 8192 + 128 * 128) / 64
    assert tile["alone"] == (1024 + 1216) + 1024
    # One block takes products and softmax in turn, two wait for each other now and then.
    assert tile["with_blocks"][0] == pytest.approx(2048 + 1216)
    assert tile["with_blocks"][1] == pytest.approx((2048**2 + 2048 * 1216 + 1216**2) / (2048 + 1216))


# Of 16 rows the copies are the longer part by far: two waits of 1,000 clocks a tile, shared by the blocks beside it.
def test_few_rows_wait_for_copies():
    tile = _C.tile_clocks(128, 16, 90, 132)
    assert tile["alone"] == 2000 and tile["with_blocks"][1] == 1000


def test_one_tile():
    f = forward(chain(64), (1, 1), rows=128)
    assert (f.tiles, f.items, f.pieces, f.partial_tiles) == (1, 1, 0, 1)
    assert (f.useful_pairs, f.computed_pairs) == (64 * 65 // 2, 128 * 64)
    assert f.operations == 4 * 128 * 64 * 65 // 2
    assert f.moved_bytes == 4 * 64 * 128 * 2 + 64 * 4
    assert f.floor_matmul == pytest.approx(f.operations / 312e12)
    assert f.floor_copy == pytest.approx(f.moved_bytes / 2039e9)
    # Alone on its multiprocessor, and two waits for memory, at the clock that is sustained.
    assert f.predicted == pytest.approx((3264 + 2000) / (0.94 * 1.41e9) + 2e-6)


# 16 tiles of 64 queries meet 1, 2, ..., 16 tiles of keys, the last of each on the diagonal.
def test_a_chain():
    f = forward(chain(1024), (4, 4), rows=64)
    assert (f.tiles, f.partial_tiles) == (4 * 136, 4 * 16)
    assert f.items - f.pieces + f.merges == 4 * 16
    assert f.computed_pairs == 4 * 136 * 64 * 64
    assert f.l2_bytes == f.tiles * 64 * 128 * 2 * 2


# 1,024 tiles of keys of one query: four blocks on each of 108 multiprocessors would be 432 items, but 4 tiles is the
# least, so 256 pieces of the 4 rows that are there.
def test_a_split_decoding():
    f = forward(chain(65536), (4, 1), query_index=torch.tensor([65535]), rows=16)
    assert (f.tiles, f.items, f.pieces, f.merges) == (1024, 256, 256, 1)
    assert f.workspace_bytes == 256 * 4 * (128 + 1) * 4
    assert f.merge_seconds > 0


def test_partial_results_are_written_in_fp32():
    kept, partial = (forward(chain(500), (4, 2), partial=partial) for partial in (False, True))
    assert partial.moved_bytes - kept.moved_bytes == 500 * 4 * 128 * 2


def test_keys_that_no_query_sees_need_not_move():
    tree = PrefixTree.from_nodes([-1, -1], [300, 200])
    f = forward(tree, (1, 1), query_start=300)
    assert f.moved_bytes == 200 * (4 * 128 * 2 + 4)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("device", [*CHIPS, "cpu"])
def test_operations_and_pairs_of_named_trees(name, device):
    tree = TREES[name]
    everywhere = torch.arange(tree.num_tokens)
    pairs = int(visible(tree.subtree_end, tree.position_ids, everywhere, everywhere, None).sum())
    shown = regrow.explain(tree, (6, 2), 64, torch.float16, device)
    assert shown.useful_pairs == 6 * pairs <= shown.computed_pairs
    if shown.forward:
        assert shown.forward.operations == 2 * 6 * pairs * (64 + 64)
        assert shown.forward.predicted >= shown.forward.floor


# Not to the last percent: other numbers of items end more or less evenly.
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_more_queries_are_not_cheaper(device, rows):
    tree = chain(8192)
    starts = [8192 - queries for queries in (1, 16, 100, 700, 3000, 8192)]
    costs = [forward(tree, (8, 2), device=device, rows=rows, query_start=start) for start in starts]
    for less, more in pairwise(costs):
        assert more.floor >= less.floor and more.predicted >= 0.95 * less.predicted


def test_a_window_is_cheaper():
    costs = [forward(chain(8192), (8, 2), window=window).predicted for window in (None, 2048, 256)]
    assert costs == sorted(costs, reverse=True)


def test_plan_work_counts_what_the_plan_has():
    words = _C.build_tiled_plan(
        *(a.numpy() for a in (chain(1000).host_subtree_end, chain(1000).host_position_ids)),
        None, 0, 1000, 0, 1000, 0, 32, 64, 1000, 4,
    )  # fmt: skip
    work = _C.plan_work(words)
    assert sorted(work["item_tiles"].tolist(), reverse=True) == work["item_tiles"].tolist()
    assert work["item_tiles"].sum() == sum(-(-min(t + 32, 1000) // 64) for t in range(0, 1000, 32))
    assert work["item_tiles"].max() <= 4 and work["merge_pieces"].sum() > 0


def test_words_of_something_else():
    with pytest.raises(ValueError, match="this is no plan: make one"):
        _C.plan_work(np.zeros(300, np.int32))
