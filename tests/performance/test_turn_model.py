"""Blocks that take turns: times worked by hand, and an order in which nobody waits for ever."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_decoder import Plan
from regrow import PrefixTree
from regrow._load import _C
from regrow.performance.backward import Work
from regrow.performance.turns import Step, run_turns

STEP = Step(work=10, poll=1, add=2, hand_on=1)  # 14 clocks


def clocks(items, heads=1, multiprocessors=4, step=STEP, **options):
    tickets = [(key_tile, np.array(queries)) for key_tile, queries in items]
    return run_turns(tickets, heads, multiprocessors, step, **options)


def test_nothing():
    assert clocks([]).clocks == 0


def test_one_block():
    run = clocks([(0, [0, 1, 2])], multiprocessors=1)
    assert (run.clocks, run.busy, run.waiting) == (42, 1, 0)


# Both ask for their turn at 10. The first has added and passed it at 14, the second then learns of it: 14 + 4.
def test_two_blocks_at_one_query_tile():
    run = clocks([(1, [0]), (0, [0])], multiprocessors=2)
    assert run.clocks == 18 and run.waiting == pytest.approx(4 / (14 + 18))


# On a chain the second block has one more query tile, the first, and is a step behind from then on.
def test_a_chain_does_not_wait():
    run = clocks([(2, [2]), (1, [1, 2]), (0, [0, 1, 2])])
    assert run.clocks == 3 * 14 and run.waiting == 0


# In the other order each block starts in front of the one that it follows: at query tile 1 at 10, where the other has
# been at 28, and at query tile 2 at 32, where the second has been at 46.
def test_from_the_first_key_tile_on_a_chain_waits():
    run = clocks([(0, [0, 1, 2]), (1, [1, 2]), (2, [2])])
    assert run.clocks == 28 + 4 + 14 + 4


# Two key tiles of 4 query tiles each, all blocks at once. With boundaries of their own the second key tile's second
# piece starts at query tile 1, which the first's first piece comes to at its end.
def test_equal_pieces_wait_and_common_cuts_do_not():
    own = clocks([(1, [2, 3]), (1, [0, 1]), (0, [1, 2, 3]), (0, [0])])
    common = clocks([(1, [2, 3]), (1, [0, 1]), (0, [2, 3]), (0, [0, 1])])
    assert common.clocks == 2 * 14 + 4
    assert own.clocks == 28 + 4 + 2 * 14


def test_not_in_order_nobody_waits():
    assert clocks([(0, [0]), (1, [0]), (2, [0])], ordered=False).clocks == 14


# dk and dv of a key tile in turns: each adds for 20 clocks after 1 to learn of its turn and before 1 to pass it.
def test_pieces_of_a_key_tile_add_in_turn():
    step = Step(work=10, poll=1, add=2, hand_on=1, start=5, key_add=20)
    run = clocks([(0, [1]), (0, [0])], multiprocessors=2, step=step)
    assert run.clocks == 5 + 14 + 22 + 22


def test_heads_share_nothing():
    one, two = clocks([(1, [0]), (0, [0])], heads=1), clocks([(1, [0]), (0, [0])], heads=2)
    assert one.clocks == two.clocks == 18


def test_more_multiprocessors_are_not_slower():
    items = [(key, list(range(key, 24))) for key in reversed(range(24))]
    times = [clocks(items, heads=2, multiprocessors=n).clocks for n in (1, 2, 5, 16, 48)]
    assert times == sorted(times, reverse=True) and times[0] == 2 * 300 * 14


@st.composite
def plans(draw):
    """Backward plans of random trees, cut for a chip of few multiprocessors."""
    count = draw(st.integers(1, 9))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    lengths = draw(st.lists(st.sampled_from((1, 40, 130, 700)), min_size=count, max_size=count))
    tree = PrefixTree.from_nodes(parents, lengths)
    index = None
    if draw(st.booleans()):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        index = torch.randint(tree.num_tokens, (200,), generator=generator).sort().values.numpy()
    axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()
    queries = 0 if index is not None else tree.num_tokens
    window = draw(st.sampled_from((0, 100)))
    heads = draw(st.sampled_from(((8, 2), (64, 1))))
    rectangle = (*axis, index, 0, queries, 0, tree.num_tokens, window)
    _, words = _C.build_cuda_plan(*rectangle, *heads, 128, 80, draw(st.integers(1, 5)), 0)
    return words, heads


# The kernel's own rules, run by blocks that stand still where they wait: tickets go from the last item to the first; a
# block adds to a query tile once all later key tiles that meet it have, and to its key tile once its later pieces have.
@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(plan=plans(), multiprocessors=st.integers(1, 7), data=st.data())
def test_nobody_waits_for_ever(plan, multiprocessors, data):
    words, heads = plan
    backward = Plan(words).of_backward
    visitors = {}
    for tile, key_tile, _ in backward.backward_tiles():
        visitors.setdefault(tile, []).append(key_tile)
    rank = {
        (tile, key): place for tile, keys in visitors.items() for place, key in enumerate(sorted(keys, reverse=True))
    }
    pieces = {
        key: sum(item.key_tile == key for item in backward.backward) for key in range(backward.header.num_key_tiles)
    }
    tickets = []
    for item in reversed(backward.backward):
        tiles = [tile for run in item.runs for tile in range(run.begin, run.end)]
        tickets.append((item.key_tile, tiles, pieces[item.key_tile] - 1 - item.turn))
    modelled = [(key, tiles.tolist()) for key, tiles in Work(words, *heads).tickets()]
    assert [(key, tiles) for key, tiles, _ in tickets] == modelled
    turns, key_turns, running = dict.fromkeys(visitors, 0), dict.fromkeys(pieces, 0), []
    upcoming = iter(tickets)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    left = len(tickets)
    while left:
        while len(running) < multiprocessors and (ticket := next(upcoming, None)):
            running.append([*ticket, 0])
        moved = False
        for block in random.permutation(len(running)).tolist():
            key_tile, tiles, later, at = running[block]
            if at < len(tiles):
                if turns[tiles[at]] == rank[tiles[at], key_tile]:
                    turns[tiles[at]] += 1
                    running[block][3] += 1
                    moved = True
            elif key_turns[key_tile] == later:
                key_turns[key_tile] += 1
                running[block][3] += 1
                left -= 1
                moved = True
        running = [block for block in running if block[3] <= len(block[1])]
        assert moved, "all blocks wait"
    assert turns == {tile: len(keys) for tile, keys in visitors.items()} and key_turns == pieces


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(plan=plans())
def test_key_tiles_are_cut_at_the_same_query_tiles(plan):
    words, heads = plan
    work = Work(words, *heads)
    _, _, _, min_tiles, common = _C.cuda_backward_tiles(*heads, 128, 1)
    assert common
    pieces = {}
    for key_tile, tiles in work.items:
        pieces.setdefault(key_tile, []).append(np.unique(tiles // work.units_of_group))
    total = int(work.lengths.sum())
    backward = Plan(words).of_backward
    share = max(min_tiles, -(-total // backward.header.items))
    for of_key_tile in pieces.values():
        for before, after in pairwise(of_key_tile):
            assert before[-1] // share < after[0] // share
        assert all(2 * len(piece) >= share for piece in of_key_tile[1:-1])
    assert len(work.items) <= 2 * (backward.header.num_key_tiles + backward.header.items)
