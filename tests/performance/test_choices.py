"""What the planner chooses at sizes that matter, and that the model agrees."""

import pytest
import torch

import regrow
from regrow._load import _C
from regrow.performance.chips import CHIPS
from regrow.performance.forward import Shape, predict_forward
from regrow.performance.workloads import (
    DIM,
    HEADS,
    conversation,
    decoding,
    grpo,
    long_decoding,
    prefill,
    verification,
)

CALLS = {
    # Whole tiles of 128 rows: mma.sync is the limit, and with fewer rows shared memory comes close or passes it.
    "grpo": (grpo(), 128),
    "conversation": (conversation(), 128),
    "prefill": (prefill(), 128),
    # 16 drafts of 4 heads are 64 rows. With 16 rows each key would be read four times.
    "verification": (verification(), 64),
    # 4 rows a sequence.
    "decoding": (decoding(), 16),
    "long decoding": (long_decoding(), 16),
}


def arguments(tree, index):
    queries = None if index is None else index.numpy()
    axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()
    return *axis, queries, 0, 0 if index is not None else tree.num_tokens, 0, tree.num_tokens, 0


@pytest.mark.parametrize("device", ["H20", "H200", "A100"])
@pytest.mark.parametrize("name", CALLS)
def test_rows(name, device):
    (tree, index), rows = CALLS[name]
    shown = regrow.explain(tree, HEADS, DIM, torch.bfloat16, device, query_index=index)
    assert shown.rows == rows


# One to four times as many items as run at once, whichever ends first: within a few percent of the best of them.
@pytest.mark.parametrize("device", ["H20", "H200", "A100"])
@pytest.mark.parametrize("name", CALLS)
def test_number_of_items(name, device):
    (tree, index), rows = CALLS[name]
    chip = CHIPS[device]
    chosen = regrow.explain(tree, HEADS, DIM, torch.bfloat16, device, query_index=index).forward
    queries, keys, most, min_tiles, _ = _C.cuda_tiles(*HEADS, rows, chip.multiprocessors)
    shape = Shape(*HEADS, DIM, DIM, 2, chosen.useful_pairs // HEADS[0])
    most_waves = 2 if rows == 128 else 4
    others = []
    for waves in range(1, most_waves + 1):
        words = _C.build_tiled_plan(*arguments(tree, index), queries, keys, most * waves // most_waves, min_tiles)
        others.append(predict_forward(words, shape, rows, chip).predicted)
    assert chosen.predicted <= 1.06 * min(others)


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("rows", [16, 64, 128])
def test_a_launch_provides_for_every_plan(device, rows):
    chip = CHIPS[device]
    for length in (100, 5000, 70_000):
        tree = regrow.PrefixTree.from_nodes([-1], [length])
        for queries in (1, 90, length):
            index = torch.arange(length - queries, length)
            chosen_rows, words = _C.build_cuda_plan(
                *arguments(tree, index), *HEADS, DIM, chip.compute_capability, chip.multiprocessors, rows
            )
            work = _C.plan_work(words)
            assert chosen_rows == rows
            assert work["items"] <= _C.cuda_tiles(*HEADS, rows, chip.multiprocessors)[2]
            assert work["merge_pieces"].sum() <= 2 * work["items"]


def test_every_configuration_has_a_reason_and_fits():
    configurations = _C.forward_configurations()
    assert {c["head_dim"] for c in configurations} == {64, 128, 256}
    for c in configurations:
        assert len(c["reason"]) > 20
        assert _C.tile_clocks(c["head_dim"], c["rows"], 90, 132)["resident"] == c["blocks"]


# In the table the planner goes from many rows to few: fewer must be a tenth better.
def test_configurations_go_from_many_rows_to_few():
    for dim in (64, 128, 256):
        rows = [c["rows"] for c in _C.forward_configurations() if c["head_dim"] == dim]
        assert rows == sorted(rows, reverse=True)
