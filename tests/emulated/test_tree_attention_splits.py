"""Long items split over keys and merged in the same call; plans of other calls are refused."""

import pytest
import torch

from attention_cases import make_case
from attention_runs import tiles_of
from named_trees import grpo_group
from regrow import PrefixTree


def _long(**more):
    """Few queries over 12 key tiles: the end of a branch that sees 500 of the trunk's keys and 150 of its own."""
    tree = PrefixTree.from_nodes([-1, 0, 0, 2], [500, 100, 130, 20])
    heads = more.pop("heads", (4, 2))
    return make_case(tree, heads=heads, queries=(738, 750), **{"dtype": torch.bfloat16, **more})


# Every configuration's rows, since slots are indexed by them; narrow values; a group that leaves rows of a tile over;
# fp32 results from the merge, which then has no sink; what the general form adds.
SPLITS = {
    "rows 16": (16, {}),
    "rows 64": (64, {}),
    "rows 128": (128, {}),
    "rows 16 of 128": (16, {"head_dim": 128, "value_dim": 128}),
    "rows 16 of 256": (16, {"head_dim": 256, "value_dim": 256, "heads": (1, 1)}),
    "fp16": (16, {"dtype": torch.float16}),
    "sinks": (16, {"sinks": True}),
    "sinks of rows 64": (64, {"sinks": True}),
    "partial": (16, {"partial": True}),
    "partial of rows 64": (64, {"partial": True}),
    "narrow values": (16, {"value_dim": 40, "sinks": True}),
    "wide values": (16, {"head_dim": 64, "value_dim": 192, "heads": (1, 1)}),
    "group of 3": (16, {"heads": (3, 1), "sinks": True}),
    "group of 32": (16, {"heads": (32, 1), "sinks": True}),
    "softcap": (16, {"softcap": 2.0, "sinks": True}),
    "window": (16, {"window": 600, "sinks": True}),
    "negative scale": (64, {"scale": -0.2}),
}


@pytest.mark.parametrize("name", SPLITS)
def test_long_items_are_split(name, attention):
    rows, options = SPLITS[name]
    case = _long(**{"head_dim": 64, "value_dim": 64, **options})
    runner = attention(rows, multiprocessors=64)
    plan, _ = tiles_of(runner, case)
    assert plan.merges and all(merge.slot_end - merge.slot_begin >= 2 for merge in plan.merges)
    runner.check(case)


@pytest.mark.parametrize("rows", [64, 16])
@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"partial": True}], ids=str)
def test_pieces_in_which_some_rows_see_nothing(options, rows, attention):
    """Queries of two roots in one tile: its first pieces hold the first root's keys, its last those of the second."""
    tree = PrefixTree.from_nodes([-1, -1], [320, 320])
    index = torch.tensor([3, 310, 319, 325, 600, 639])
    shape = {"heads": (2, 1), "head_dim": 64, "value_dim": 64, "query_index": index}
    case = make_case(tree, dtype=torch.bfloat16, **shape, **options)
    runner = attention(rows, multiprocessors=64)
    plan, _ = tiles_of(runner, case)
    pieces = [item.runs for item in plan.forward if item.slot >= 0]
    assert any(runs[-1].end <= 5 for runs in pieces), "no piece of the first root's keys alone"
    assert any(runs[0].begin >= 5 for runs in pieces), "none of the second's"
    runner.check(case)


@pytest.mark.parametrize("options", [{}, {"sinks": True}], ids=str)
def test_rows_that_see_nothing_in_any_piece(options, attention):
    """Among rows of the same tile that see keys in all pieces."""
    tree = PrefixTree.from_nodes([-1, -1], [600, 50])
    index = torch.tensor([500, 599, 600, 649])
    shape = {"heads": (2, 1), "head_dim": 64, "value_dim": 64, "query_index": index, "keys": (0, 600)}
    case = make_case(tree, dtype=torch.bfloat16, **shape, **options)
    runner = attention(16, multiprocessors=64)
    assert tiles_of(runner, case)[0].merges
    results = runner.check(case)
    assert (results["out"][2:] == 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("sinks", [False, True])
def test_bad_scores_survive_the_merge(bad, sinks, attention):
    case = _long(head_dim=64, value_dim=64, sinks=sinks)
    case.q[..., 0] = 1
    case.k[70, :, 0] = bad
    results = attention(16, multiprocessors=64).run(case)
    assert results["out"].isnan().all()
    assert results["lse"].isnan().all() if bad != bad else (results["lse"] == torch.inf).all()


@pytest.mark.parametrize("sinks", [False, True])
def test_bad_scores_survive_beside_pieces_that_saw_nothing(sinks, attention):
    tree, index = PrefixTree.from_nodes([-1, -1], [320, 320]), torch.tensor([310, 319, 600, 639])
    shape = {"heads": (2, 1), "head_dim": 64, "value_dim": 64, "query_index": index}
    case = make_case(tree, dtype=torch.bfloat16, sinks=sinks, **shape)
    case.k[320:] = torch.nan
    results = attention(16, multiprocessors=64).run(case)
    for result in results.values():
        assert result[:2].isfinite().all() and result[2:].isnan().all()


# What a plan says, one by one: it was made for another call.
OTHERS = {
    "query start": {"queries": (41, 61)},
    "queries": {"queries": (40, 62)},
    "key start": {"keys": (1, 121)},
    "keys": {"keys": (0, 110)},
    "window": {"window": 5},
    "indexed": {"query_index": torch.arange(40, 60)},
    "tokens": {"tree": grpo_group(num_responses=9)},
    "heads of a tile": {"heads": (1, 1)},
}


@pytest.mark.parametrize("rows", [64, 16])
@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_of_another_call_is_refused(name, rows, attention, options, emulator):
    call = {"tree": grpo_group(), "queries": (40, 60), "keys": (0, 120), "heads": (2, 1)}
    call |= {"dtype": torch.bfloat16, "head_dim": 64, "value_dim": 64}
    runner = attention(rows)
    plan = runner.plan(make_case(**call | OTHERS[name]))
    with pytest.raises(emulator.Failure, match=r"the plan does not fit this call: make one with regrow\.plan"):
        runner.arrays(make_case(**call), options, plan)


@pytest.mark.parametrize("indexed", [False, True])
def test_scattered_queries_are_told_from_a_range(indexed, attention, emulator):
    """Of the same queries: a call with an index reads it, a plan without has no checksum of it."""
    kinds = [{"queries": (0, 20)}, {"query_index": torch.arange(20)}]
    case, other = (
        make_case(grpo_group(), dtype=torch.bfloat16, heads=(2, 1), head_dim=64, value_dim=64, **kinds[kind])
        for kind in (indexed, not indexed)
    )
    runner = attention(64)
    with pytest.raises(emulator.Failure, match="the plan does not fit this call"):
        runner.arrays(case, emulator.Options(), runner.plan(other))


def test_what_is_no_plan_is_refused(attention, emulator):
    case = _long(head_dim=64, value_dim=64)
    runner = attention(16)
    plan = runner.plan(case)
    plan[0] += 1
    with pytest.raises(emulator.Failure, match="the plan does not fit this call"):
        runner.arrays(case, emulator.Options(), plan)
