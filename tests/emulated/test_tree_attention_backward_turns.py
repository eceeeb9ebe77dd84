"""Sums that many blocks add to: accumulators, key tiles split over queries, query tiles of many key tiles; plans."""

import pytest
import torch

from attention_cases import make_case
from backward_runs import GRADIENTS, KEYS, compare, forward, on_cpu, rounding_apart
from named_trees import conversation, grpo_group
from regrow import PrefixTree

DIMS = pytest.mark.parametrize("head_dim", [64, 256])


def _case(tree, head_dim=64, **more):
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": head_dim, "dtype": torch.bfloat16}
    return make_case(tree, **shape | more)


def _long(head_dim, tiles, **more):
    """Queries at the end of a chain that spans `tiles` key tiles, the last of a few keys."""
    length = KEYS[head_dim] * (tiles - 1) + 40
    tree = PrefixTree.from_nodes([-1, 0, 0], [length - 30, 20, 30])
    return _case(tree, head_dim, queries=(length - 36, length + 20), **more)


def _random(case, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(getattr(case, name[1:]).shape, generator=generator) for name in GRADIENTS}


@DIMS
@pytest.mark.parametrize("options", [{}, {"window": 25, "softcap": 3.0}], ids=str)
def test_accumulators_are_added_to(options, head_dim, backward):
    """Two calls into one set of accumulators: each adds what it gives alone, up to the rounding of the sums."""
    case = _case(grpo_group(num_responses=5), head_dim, **options)
    runner, given, before = backward(), forward(case), _random(case)
    once = runner.run(case, given, into=before)
    twice = runner.once(case, given, turn=1, into=once)
    alone = runner.once(case, given, turn=2)
    for name in GRADIENTS:
        unit = 4 * torch.finfo(torch.float32).eps * (before[name].abs() + 2 * alone[name].abs() + 1)
        assert ((once[name] - before[name] - alone[name]).abs() <= unit).all(), name
        assert ((twice[name] - before[name] - 2 * alone[name]).abs() <= 2 * unit).all(), name


def test_a_single_item_adds_its_sum_in_one_step(backward):
    """One key tile, one query tile: the bits are those of accumulator plus gradient."""
    case = _case(grpo_group(num_responses=2))
    runner, given, before = backward(), forward(case), _random(case)
    assert len(runner.plan(case).backward_tiles()) == 2
    alone, added = runner.once(case, given), runner.once(case, given, into=before)
    for name in ("dk", "dv"):
        assert torch.equal(added[name], before[name] + alone[name]), name


@DIMS
@pytest.mark.parametrize("wanted", [("dq",), ("dk", "dv"), ()], ids=str)
def test_gradients_that_nobody_asks_for(wanted, head_dim, backward):
    """What is left has the bits of a call that asks for all; dsinks comes in any case."""
    case = _long(head_dim, 3, sinks=True)
    runner, given, into = backward(), forward(case), _random(case)
    every = runner.once(case, given, into=into)
    some = runner.run(case, given, into=into, wanted=wanted)
    for name in (*wanted, "dsinks"):
        assert torch.equal(some[name], every[name]), name


# A key tile's queries in pieces of at least 8 tiles: tokens of a large group, one or two to a tile.
SPLITS = {
    "64": (64, {"heads": (64, 1)}),
    "128": (128, {"heads": (64, 1), "dtype": torch.float16}),
    "256": (256, {"heads": (32, 1)}),
    "units": (64, {"heads": (128, 1)}),
    "two heads": (64, {"heads": (128, 2), "sinks": True}),
    "general": (128, {"heads": (64, 1), "window": 40, "softcap": 2.0}),
}


@pytest.mark.parametrize("name", SPLITS)
def test_key_tiles_split_over_queries(name, backward):
    head_dim, options = SPLITS[name]
    tokens = 64 // min(options["heads"][0], 64)
    tree = PrefixTree.from_nodes([-1, 0, 0], [30, 9 * tokens, 9 * tokens - 1])
    case = _case(tree, head_dim, queries=(30, 30 + 18 * tokens - 1), **options)
    runner = backward(multiprocessors=1)
    items = runner.plan(case).backward
    pieces = {item.key_tile: item.turn + 1 for item in items}
    assert pieces[0] >= 2, "no key tile is split"
    given = forward(case)
    compare(case, runner.once(case, given, turn=1), given)
    into = _random(case)
    ways = [runner.once(case, given, turn=turn, into=into) for turn in (0, 3, 4)]
    assert all(torch.equal(way[name], ways[0][name]) for way in ways for name in way)


# A query tile that meets all key tiles, whose plan then counts them over several runs: full ones and the partial last.
@pytest.mark.parametrize("head_dim, tiles", [(64, 5), (128, 3), (256, 6)])
@pytest.mark.parametrize("options", [{}, {"window": 150}], ids=str)
def test_many_key_tiles_of_a_query_tile(options, head_dim, tiles, backward):
    case = _long(head_dim, tiles, heads=(1, 1), **options)
    runner = backward()
    met = [key_tile for query_tile, key_tile, _ in runner.plan(case).backward_tiles() if query_tile == 0]
    assert len(met) >= (2 if options else tiles)
    runner.check(case)


@DIMS
def test_key_tiles_between_which_others_are_not_met(head_dim, backward):
    """A branch sees the trunk and itself, not its siblings: turns count the key tiles that are met."""
    keys = KEYS[head_dim]
    tree = PrefixTree.from_nodes([-1, 0, 0], [keys, 2 * keys, keys + 9])
    case = _case(tree, head_dim, heads=(1, 1), queries=(3 * keys + 30, 4 * keys + 9))
    runner = backward()
    assert {tile for _, tile, _ in runner.plan(case).backward_tiles()} == {0, 3, 4}
    runner.check(case)


def test_dq_is_summed_from_the_last_key_tile_on(backward):
    """Seen in the bits: each key tile's own dq, added in fp32 from the last to the first."""
    case = _long(64, 5, heads=(1, 1))
    runner, given = backward(), forward(case)
    parts, total = [], torch.zeros(case.q.shape)
    for start in range(0, case.k.size(0), 128):
        part = _case(case.tree, heads=(1, 1), queries=(case.options["query_start"],) * 2)
        part.q, part.dout, part.dlse = case.q, case.dout, case.dlse
        part.k, part.v = case.k[start : start + 128], case.v[start : start + 128]
        part.options |= {"key_start": start}
        parts.append(runner.once(part, given)["dq"])
    for part in reversed(parts):
        total += part
    ascending = sum(parts[1:], parts[0].clone())
    assert torch.equal(runner.once(case, given)["dq"], total)
    assert not torch.equal(ascending, total)


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


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_of_another_call_is_refused(name, backward, options, emulator):
    call = {"tree": grpo_group(), "queries": (40, 60), "keys": (0, 120)}
    runner, case = backward(), _case(**call)
    words = runner.words(_case(**call | OTHERS[name]))
    with pytest.raises(emulator.Failure, match=r"the plan does not fit this call: make one with regrow\.plan"):
        runner.arrays(case, options, words=words)


@pytest.mark.parametrize("other", [{"multiprocessors": 2}, {"head_dim": 256}], ids=str)
def test_a_plan_of_another_chip_or_head_dim_is_refused(other, backward, emulator):
    case = _case(conversation())
    of_other = _case(conversation(), other.get("head_dim", 64))
    words = backward(other.get("multiprocessors", 1)).words(of_other)
    with pytest.raises(emulator.Failure, match="the plan does not fit this call"):
        backward().arrays(case, emulator.Options(), words=words)


def test_near_the_cpu_with_the_same_accumulators(backward):
    case = _long(64, 3)
    runner, given, into = backward(), forward(case), _random(case)
    ours, cpu = runner.once(case, given, into=into), on_cpu(case, given, into=into)
    for name, bound in rounding_apart(case, given).items():
        slack = bound + 8 * torch.finfo(torch.float32).eps * (into[name].abs() + 1)
        assert ((ours[name] - cpu[name]).abs() <= slack).all(), name
