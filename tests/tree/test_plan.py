"""Plans: every visible pair once in both directions, full tiles full, nothing else computed than must be."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow
from plan_decoder import Plan
from regrow import PrefixTree
from regrow.reference import visible


@st.composite
def trees(draw):
    lengths = draw(st.lists(st.sampled_from((1, 2, 30, 64, 129, 400)), max_size=8))
    return PrefixTree.from_nodes([draw(st.integers(-1, node - 1)) for node in range(len(lengths))], lengths)


@st.composite
def calls(draw):
    """A tree, a rectangle, a window, and one or 17 query heads: tiles of 64 queries, or of 8 and so more of them."""
    tree = draw(trees())
    position = st.integers(0, tree.num_tokens)
    first_key, last_key = sorted((draw(position), draw(position)))
    options = {"key_start": first_key, "num_keys": last_key - first_key}
    if tree.num_tokens and draw(st.booleans()):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        options["query_index"] = torch.randint(tree.num_tokens, (150,), generator=generator).sort().values
        positions = options["query_index"]
    else:
        first, last = sorted((draw(position), draw(position)))
        options |= {"query_start": first, "num_queries": last - first}
        positions = torch.arange(first, last)
    options |= {"window": draw(st.sampled_from((None, 1, 20, 300))), "query_heads": draw(st.sampled_from((1, 17)))}
    mask = visible(tree.subtree_end, tree.position_ids, positions, torch.arange(first_key, last_key), options["window"])
    return mask, Plan(regrow.plan(tree, kv_heads=1, **options))


def covered(tiles, mask, header):
    """How often each pair of a rectangle is computed, and which lie in tiles that skip the mask."""
    count, full = torch.zeros_like(mask, dtype=torch.int32), torch.zeros_like(mask)
    for query_tile, key_tile, partial in tiles:
        rows = slice(query_tile * header.query_tile, (query_tile + 1) * header.query_tile)
        columns = slice(key_tile * header.key_tile, (key_tile + 1) * header.key_tile)
        count[rows, columns] += 1
        full[rows, columns] |= not partial
    return count, full


@settings(max_examples=150, derandomize=True, database=None)
@given(call=calls())
def test_every_visible_pair_is_computed_once_in_both_directions(call):
    mask, plan = call
    for tiles in (plan.forward_tiles(), plan.backward_tiles()):
        count, full = covered(tiles, mask, plan.header)
        assert (count <= 1).all() and (count[mask] == 1).all()
        assert mask[full].all()
    assert sorted(plan.forward_tiles()) == sorted(plan.backward_tiles())


@settings(max_examples=100, derandomize=True, database=None)
@given(call=calls())
def test_unseen_keys_are_exactly_those_that_no_query_sees(call):
    mask, plan = call
    seen = torch.tensor(plan.seen, dtype=torch.bool)
    assert torch.equal(seen[: mask.size(1)], mask.any(0)) and not seen[mask.size(1) :].any()
    assert plan.header.num_unseen == (~mask.any(0)).sum()


@settings(max_examples=100, derandomize=True, database=None)
@given(call=calls())
def test_pieces_are_in_order(call):
    """Slots of a split query tile in key order, turns of a key tile, and how many tiles of a list come before a run."""
    _, plan = call
    by_slot = {item.slot: item for item in plan.forward if item.slot >= 0}
    assert sorted(by_slot) == list(range(plan.header.num_slots))
    slots = [slot for merge in plan.merges for slot in range(merge.slot_begin, merge.slot_end)]
    assert slots == list(range(plan.header.num_slots))
    whole = [item.query_tile for item in plan.forward if item.slot < 0]
    assert sorted(whole + [merge.query_tile for merge in plan.merges]) == list(range(plan.header.num_query_tiles))
    for merge in plan.merges:
        pieces = [by_slot[slot] for slot in range(merge.slot_begin, merge.slot_end)]
        assert {piece.query_tile for piece in pieces} == {merge.query_tile}
        check_ordinals([run for piece in pieces for run in piece.runs])
    for item in plan.forward:
        if item.slot < 0:
            check_ordinals(item.runs)
    assert [item.key_tile for item in plan.backward] == sorted(item.key_tile for item in plan.backward)
    by_key_tile = {}
    for item in plan.backward:
        by_key_tile.setdefault(item.key_tile, []).append(item)
    for items in by_key_tile.values():
        assert [item.turn for item in items] == list(range(len(items)))
        check_ordinals([run for item in items for run in item.runs])


def check_ordinals(runs):
    tiles, end = 0, 0
    for run in runs:
        assert run.ordinal == tiles and end <= run.begin < run.end
        tiles, end = tiles + run.end - run.begin, run.end


def chain_plan(num_tokens, **options):
    tree = PrefixTree.from_nodes([-1], [num_tokens])
    return Plan(regrow.plan(tree, query_heads=1, kv_heads=1, **options))


def test_work_falls_with_the_window():
    tiles = [len(chain_plan(8192, window=window).forward_tiles()) for window in (None, 4096, 1024, 256, 64)]
    assert tiles == sorted(tiles, reverse=True) and len(set(tiles)) == len(tiles)
    assert tiles[-1] <= 2 * 8192 // 64  # a query tile of 64 and a window of 64 touch at most two tiles of 128 keys


def test_siblings_do_not_meet():
    tree = PrefixTree.from_nodes([-1] + [0] * 8, [128] * 9)
    plan = Plan(regrow.plan(tree, query_heads=1, kv_heads=1))
    assert {(query // 2, key) for query, key, _ in plan.forward_tiles()} == {(t, k) for t in range(9) for k in {0, t}}
    assert all(partial == (query // 2 == key) for query, key, partial in plan.forward_tiles())


# Few queries over very many keys are split over keys, a root's keys under very many queries over queries.
def test_long_work_is_split_and_short_work_is_not():
    plan = chain_plan(65_536, query_start=65_500)
    assert len(plan.forward) > 16 and len(plan.merges) == 1
    plan = chain_plan(65_536, num_keys=100)
    assert len(plan.backward) > 16 and not plan.merges
    plan = chain_plan(1024)
    assert not plan.merges and {item.turn for item in plan.backward} == {0}


def test_two_million_tokens_are_planned_in_time():
    """The bar is 50 ms; five times that leaves room for a busy machine."""
    prompt, responses = 2_097_152 - 8 * 8192, [8192] * 8
    tree = PrefixTree.from_nodes([-1] + [0] * 8, [prompt, *responses])
    seconds = []
    for _ in range(3):
        tree.plans.clear()
        start = time.perf_counter()
        words = regrow.plan(tree, query_heads=8, kv_heads=2)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.25
    assert words.numel() * 4 < 2_097_152 * 4  # a plan is small beside the axis


def test_the_header_names_the_rectangle():
    header = chain_plan(300, query_start=7, num_queries=200, key_start=3, num_keys=150, window=9).header
    assert header.num_words == header.seen_keys + header.num_key_tiles * header.key_tile // 32
    assert (header.num_tokens, header.num_queries, header.num_keys) == (300, 200, 150)
    assert (header.query_start, header.key_start, header.window, header.indexed) == (7, 3, 9, 0)


@pytest.mark.parametrize(
    "query_heads, kv_heads, query_tile", [(1, 1, 64), (4, 1, 64), (8, 2, 64), (9, 1, 16), (17, 1, 8)]
)
def test_a_query_tile_holds_at_most_256_rows(query_heads, kv_heads, query_tile):
    plan = Plan(regrow.plan(PrefixTree.from_nodes([-1], [5]), query_heads=query_heads, kv_heads=kv_heads))
    assert plan.header.query_tile == query_tile and plan.header.key_tile == 128
