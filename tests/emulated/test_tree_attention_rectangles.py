"""Tree attention of each kind of rectangle: chunks, ranges of keys, scattered queries, nothing to see, nothing."""

import pytest
import torch

import regrow
from attention_cases import assert_matches_oracle, make_case
from named_trees import chain, conversation, empty, grpo_group, ragged
from plan_decoder import Plan
from regrow import PrefixTree

# The two kinds of configuration: warps along the rows, and along the keys of a tile.
ROWS = pytest.mark.parametrize("rows", [64, 16])
SMALL = {"heads": (2, 1), "head_dim": 64, "value_dim": 64}

# A chunk against its path; against keys of one tile, of a tile and a bit, of none that it sees whole; keys before,
# beside and after the queries; scattered queries, some twice, with gaps of more than a tile between them.
RECTANGLES = {
    "chunk and its path": {"queries": (60, 100), "keys": (0, 100)},
    "chunk of one": {"queries": (77, 78), "keys": (0, 78)},
    "keys of one tile": {"keys": (10, 74)},
    "keys of a tile and one": {"queries": (30, 146), "keys": (10, 75)},
    "one key": {"keys": (20, 21)},
    "keys partly after the queries": {"queries": (20, 60), "keys": (0, 146)},
    "scattered": {"query_index": torch.tensor([0, 0, 5, 33, 34, 70, 100, 145, 145])},
    "scattered, some keys": {"query_index": torch.tensor([40, 41, 140]), "keys": (3, 120)},
    "scattered, window": {"query_index": torch.tensor([40, 55, 140]), "keys": (3, 146), "window": 9},
}


@ROWS
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("rectangle", RECTANGLES)
def test_rectangles(rectangle, sinks, rows, attention):
    case = make_case(grpo_group(), dtype=torch.bfloat16, sinks=sinks, **SMALL, **RECTANGLES[rectangle])
    attention(rows).check(case)


# All queries see all keys, but the last tile may not be full: one key of it, all but one, all; a tile and then these.
@ROWS
@pytest.mark.parametrize("num_keys", [1, 63, 64, 65, 127])
def test_a_last_tile_of_any_size(num_keys, rows, attention):
    case = make_case(chain(4, 50), dtype=torch.bfloat16, queries=(150, 160), keys=(3, 3 + num_keys), **SMALL)
    for name in ("k", "v"):  # what lies past the end is NaN
        wide = torch.full((num_keys + 64, 1, 64), torch.nan, dtype=case.k.dtype)
        setattr(case, name, wide[:num_keys].copy_(getattr(case, name)))
    attention(rows).check(case)


@ROWS
def test_scattered_queries_of_a_large_tree(rows, attention):
    tree = ragged(num_nodes=20)
    index = torch.arange(1, tree.num_tokens, 17)
    attention(rows).check(make_case(tree, dtype=torch.float16, query_index=index, **SMALL))


@pytest.mark.parametrize("head_dim, rows", [(64, 128), (128, 64), (64, 16), (256, 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_partial_results_merge_to_the_whole(head_dim, rows, dtype, attention, emulator):
    """Keys in blocks that end within tiles; some queries see nothing of some. Each part is right, and their join."""
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": head_dim}
    whole = make_case(grpo_group(), dtype=dtype, sinks=True, queries=(60, 110), **shape)
    runner, outs, lses = attention(rows), [], []
    for first, last in ((0, 30), (30, 101), (101, 146)):
        part = make_case(grpo_group(), dtype=dtype, partial=True, queries=(60, 110), keys=(first, last), **shape)
        part.q, part.k, part.v = whole.q, whole.k[first:last], whole.v[first:last]
        results = runner.check(part)
        outs.append(results["out"])
        lses.append(results["lse"].T.contiguous())
    merge = [torch.stack(outs), torch.stack(lses), whole.sinks.float()]
    out, lse, _ = emulator.lse_merge(*(x.numpy() for x in merge), "float32", emulator.Options())
    ours = {"out": torch.from_numpy(out), "lse": torch.from_numpy(lse).T}
    assert_matches_oracle(whole, ours)
    cpu_out, cpu_lse = regrow.lse_merge(*merge)
    torch.testing.assert_close(ours["out"], cpu_out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours["lse"].T, cpu_lse, rtol=1e-6, atol=1e-6)


# Rows 128 has warps without a row, the others warps without a key.
@pytest.mark.parametrize("rows", [128, 64, 16])
@pytest.mark.parametrize("partial, sinks", [(False, False), (False, True), (True, False)])
def test_queries_that_see_nothing(partial, sinks, rows, attention):
    """Among others of their tile; a whole tile of them, which has no key tile."""
    tree = PrefixTree.from_nodes([-1, -1], [40, 150])  # a query of the second root sees no key of the first
    case = make_case(tree, dtype=torch.bfloat16, queries=(30, 190), keys=(0, 40), partial=partial, sinks=sinks, **SMALL)
    runner = attention(rows)
    plan = Plan(runner.plan(case))
    assert any(not item.runs for item in plan.forward)
    results = runner.check(case)
    assert (results["out"][10:] == 0).all()
    expected = case.sinks.float() if sinks else torch.tensor(-torch.inf)
    assert (results["lse"][10:] == expected).all()


NOTHING = {
    "no keys": (conversation(), {"keys": (7, 7)}),
    "no queries": (conversation(), {"queries": (7, 7)}),
    "neither": (conversation(), {"queries": (9, 9), "keys": (7, 7)}),
    "empty tree": (empty(), {}),
}


@ROWS
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("nothing", NOTHING)
def test_nothing_to_do(nothing, sinks, rows, attention):
    tree, rectangle = NOTHING[nothing]
    attention(rows).check(make_case(tree, dtype=torch.float16, sinks=sinks, **SMALL, **rectangle))


@ROWS
def test_no_query_index(rows, attention):
    index = torch.zeros(0, dtype=torch.int64)
    attention(rows).check(make_case(conversation(), dtype=torch.bfloat16, query_index=index, **SMALL))


@ROWS
def test_one_token(rows, attention):
    case = make_case(PrefixTree.from_nodes([-1], [1]), dtype=torch.bfloat16, **SMALL)
    results = attention(rows).check(case)
    assert torch.equal(results["out"], case.v.expand(1, 2, 64))
