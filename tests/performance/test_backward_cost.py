"""Floor and prediction of the backward, worked by hand; two passes beside it."""

from itertools import pairwise

import pytest
import torch

import regrow
from named_trees import named_trees
from regrow import PrefixTree
from regrow._load import _C
from regrow.performance import passes, workloads
from regrow.performance.backward import Work, step_of
from regrow.performance.chips import CHIPS
from regrow.performance.turns import run_turns
from regrow.reference import visible

TREES = named_trees()


def explain(tree, heads=(4, 1), head_dim=128, device="A100", dtype=torch.bfloat16, **options):
    return regrow.explain(tree, heads, head_dim, dtype, device, backward=True, **options)


def chain(length):
    return PrefixTree.from_nodes([-1], [length])


def device(name):
    return CHIPS[name].device_class


# 64 rows x 128 keys x 128, five times, at 1,024 multiply-adds a clock. Each of eight warps reads 16 keys and all 64
# rows for scores and for dweights; the rows of dout and of q for dv and dk, whose other operand is in registers; and
# 16 rows of dscores and 64 columns of the keys for dq. Two tiles of 64 rows are copied.
def test_clocks_of_a_step():
    kernel = passes.built(128)
    parts = kernel.clocks(device("A100"))
    pair = 64 * 128
    assert kernel.num_products == 5
    assert parts["products"] == 5 * pair * 128 / 1024
    scores, keys, queries = 2 * 8 * (16 + 64) * 128 * 2, 2 * 8 * 64 * 128 * 2, 8 * (16 + 64) * 128 * 2
    copies = 2 * 64 * 128 * 2
    assert parts["operands"] == (scores + keys + queries + copies) / 128 == 6144
    assert parts["multiply"] == (scores + copies) / 128 + 2048 + queries / 128
    assert parts["softmax"] == pair / 16 + 4 * pair / 64 + pair * 2 / 128


# Seven products in two passes, three of them by blocks of 64 x 64.
def test_two_passes_have_seven_products():
    first, second = passes.keys_pass(128), passes.queries_pass(128)
    assert (first.num_products, second.num_products) == (4, 3)
    assert first.clocks(device("H20"))["products"] == 4 * 64 * 128 * 128 / 297
    assert second.clocks(device("H20"))["products"] == pytest.approx(3 * 64 * 64 * 128 / 297)


# 64 keys a block; two warps share 16 of them, so that scores and dscores go through shared memory; dq in two parts.
def test_head_dim_256():
    kernel = passes.built(256)
    assert (kernel.rows, kernel.keys) == (64, 64)
    assert kernel.exchanged_bytes == 2 * 64 * 64 * 2
    scores, keys, queries = 2 * 8 * (16 + 32) * 256, 2 * 8 * (16 + 128) * 64, 8 * (2 * 16 + 128) * 64
    assert sum(p.operand_bytes for phase in kernel.phases for p in phase) == 2 * (scores + keys + queries)


# The load of the next run, then the turn: seen, 2 x 8 rows a warp added, 32 KB, passed on.
def test_clocks_of_a_turn():
    step, parts = step_of(passes.built(128), 128, device("H200"))
    assert step.add == 2 * 300 + 64 * 128 * 4 / 64
    assert parts["turn"] == step.turn == 300 + 1112 + 300
    assert step.work == parts["multiply"] + parts["softmax"] + 300
    assert step.key_add == 8 * 1000 + 2 * 128 * 128 * 4 / 64


# One item of one step: the ticket and the plan, the keys, the step, and dk and dv. Eight kernels, sums of zeros,
# written, read and converted; delta reads out and dout and writes 2 floats, for lse.
def test_one_tile():
    b = explain(chain(16)).backward
    assert (b.steps, b.partial_steps, b.items, b.pieces, b.waves) == (1, 1, 1, 0, 1 / 108)
    assert b.operations == 10 * 128 * 4 * 16 * 17 // 2
    query, key = 4 * 16 * 128, 16 * 128
    assert b.moved_bytes == 4 * query * 2 + 64 * 4 + 2 * 2 * key * 2
    assert b.floor_matmul == pytest.approx(b.operations / 312e12)
    step, _ = step_of(passes.built(128), 128, device("A100"))
    clocks = step.start + step.work + step.turn + 600 + step.key_add
    assert b.kernel_seconds == pytest.approx(clocks / (0.94 * 1.41e9) + 2e-6)
    around = (query + 2 * key) * (4 + 4 + 2) + 64 * (128 * 4 + 12)
    assert b.accumulated_bytes == around
    assert b.around_seconds == pytest.approx(around / (2039e9 * 4300 / 4800) + 16e-6)


# 8 key tiles of 128 meet 64, 56, ..., 8 query tiles of 16 tokens.
def test_a_chain():
    shown = explain(chain(1024), heads=(8, 2))
    assert shown.tiles == 2 * sum(range(8, 65, 8))
    assert shown.partial_tiles == 2 * 8 * 8
    assert shown.computed_pairs == shown.tiles * 64 * 128
    assert shown.items > 2 * 8 and shown.pieces > 0 and shown.merges == 0


# 132 blocks are 8 query tiles of 64 KB behind one another, 69 MB; L2 has 50 MiB of them. A short chain's fit.
def test_dq_that_l2_does_not_keep():
    long, short = (explain(chain(length), (32, 8), device="H200").backward for length in (32768, 100))
    kept = 50 * 2**20 / (132 * 8 * 65536)
    assert long.step_clocks["turn"] == pytest.approx(600 + 2 * (300 * kept + 1000 * (1 - kept)) + 512)
    assert short.step_clocks["turn"] == 1712


# 64 heads of one group share a tile; of 128 there are two units, each with rows and turns of its own.
def test_large_groups():
    one, two = (explain(chain(300), heads=(heads, 1)) for heads in (64, 128))
    assert (one.query_tile, one.heads_of_tile) == (two.query_tile, two.heads_of_tile) == (1, 64)
    assert two.tiles == 2 * one.tiles and two.backward.operations == 2 * one.backward.operations


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("where", [*CHIPS, "cpu"])
def test_operations_and_pairs_of_named_trees(name, where):
    tree = TREES[name]
    everywhere = torch.arange(tree.num_tokens)
    pairs = int(visible(tree.subtree_end, tree.position_ids, everywhere, everywhere, None).sum())
    shown = explain(tree, (6, 2), 64, where)
    assert shown.useful_pairs == 6 * pairs <= shown.computed_pairs
    if shown.backward:
        forward = regrow.explain(tree, (6, 2), 64, torch.bfloat16, where).forward
        assert shown.backward.operations == 2.5 * forward.operations
        assert shown.backward.predicted >= shown.backward.floor


def test_values_narrower_than_keys():
    shown = explain(chain(100), head_dim=192, value_dim=128)
    assert shown.backward.operations == 2 * shown.useful_pairs * (3 * 192 + 2 * 128)


# Not to the last percent: other pieces end more or less evenly.
@pytest.mark.parametrize("where", CHIPS)
def test_more_queries_are_not_cheaper(where):
    costs = [explain(chain(8192), (8, 2), query_start=start, device=where).backward for start in (8191, 8000, 6000, 0)]
    for less, more in pairwise(costs):
        assert more.floor >= less.floor and more.predicted >= 0.95 * less.predicted


def test_a_window_is_cheaper():
    costs = [explain(chain(8192), (8, 2), window=window).backward.predicted for window in (None, 2048, 256)]
    assert costs == sorted(costs, reverse=True)


def test_of_partial_results_out_is_fp32():
    kept, partial = (explain(chain(500), (4, 2), partial=partial).backward for partial in (False, True))
    assert partial.moved_bytes - kept.moved_bytes == 500 * 4 * 128 * 2


# docs/performance.md: matmul is scarce on H20; elsewhere what nothing overlaps costs more than the products saved.
def test_one_pass_or_two():
    tree, _ = workloads.grpo()
    h20, h200 = (explain(tree, workloads.HEADS, device=name).backward for name in ("H20", "H200"))
    assert h20.two_passes > 1.1 * h20.predicted
    assert 0.85 * h200.predicted < h200.two_passes < h200.predicted
    assert h20.bound == "matmul" and h200.bound == "shared memory"


# Why the plan's cuts are common ones: half of the time blocks with equal pieces wait.
@pytest.mark.parametrize("call", [workloads.conversation, workloads.prefill])
@pytest.mark.parametrize("name", ["H20", "H200", "A100"])
def test_common_cuts_beat_equal_pieces_and_none(name, call):
    tree, _ = call()
    chip = CHIPS[name]
    step, _ = step_of(passes.built(128), 128, chip.device_class)
    queries, keys, items, min_tiles, _ = _C.cuda_backward_tiles(*workloads.HEADS, 128, chip.multiprocessors)
    axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()

    def run(items, common_cuts):
        rectangle = (*axis, None, 0, tree.num_tokens, 0, tree.num_tokens, 0)
        words = _C.build_tiled_plan(*rectangle, queries, keys, items, min_tiles, common_cuts)
        return run_turns(Work(words, *workloads.HEADS).tickets(), 8, chip.multiprocessors, step)

    chosen, equal, uncut = run(items, True), run(items, False), run(1, False)
    assert chosen.clocks < 0.75 * equal.clocks and chosen.clocks < uncut.clocks
    assert chosen.waiting < 0.16 and equal.waiting > 0.3


def test_text():
    shown = explain(chain(1000), (8, 2), device="H20")
    lines = str(shown).splitlines()
    assert lines[0] == "backward of tree_attention on H20: 1,000 queries x 1,000 keys, 8 / 2 heads of 128, bfloat16"
    table = {line[2:16].strip(): line[16:] for line in lines[1:]}
    assert table["configuration"] == "64 rows (16 queries x 4 heads), tiles of 128 keys"
    assert table["work items"].endswith("pieces, which add in turn")
    assert table["waves"].endswith("waiting for turns") and table["two passes"].endswith("not built")
    assert "five products" in table["because"]
    assert shown.forward is None and shown.backward.predicted > 0


def test_the_cpu_has_counts_and_no_times():
    shown = explain(chain(1000), (8, 2), device="cpu")
    assert shown.backward is None and shown.rows == 256 and "predicted" not in str(shown)
    assert "which add in turn" in str(shown)


def test_no_tokens():
    shown = explain(PrefixTree.from_nodes([], []))
    assert shown.tiles == 0 and shown.backward.floor == 0 and "0 of 0 computed" in str(shown)


def test_rows_are_not_asked_for():
    with pytest.raises(ValueError, match="rows is 64: the backward has one number of rows, leave them to the planner"):
        explain(chain(10), rows=64)
