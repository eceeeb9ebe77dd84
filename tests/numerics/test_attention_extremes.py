"""Scores, sizes and values at their extremes."""

import pytest
import torch

import regrow
from attention_cases import assert_matches_oracle, assert_same, make_case, run_oracle, run_regrow
from named_trees import conversation, empty, grpo_group
from regrow import PrefixTree

NAN = float("nan")
FLOATS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


# 1e4 saturates the softmax and, with softcap, tanh; 1e-4 leaves it flat and tanh in its linear part.
@FLOATS
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("score", [1e4, 1e-4])
def test_huge_and_tiny_scores(isa, score, softcap, dtype):
    case = make_case(conversation(), dtype=dtype, magnitude=score**0.5, scale=16**-0.5, softcap=softcap, sinks=True)
    results = assert_matches_oracle(case)
    assert all(result.isfinite().all() for result in results.values())


def test_large_bfloat16_values():
    case = make_case(grpo_group(), dtype=torch.bfloat16)
    case.v.mul_(1e30)
    assert_matches_oracle(case)


@FLOATS
@pytest.mark.parametrize("sinks", [False, True])
def test_queries_that_see_nothing(dtype, sinks):
    tree = PrefixTree.from_nodes([-1, -1], [70, 80])  # a query of the second root sees no key of the first
    case = make_case(tree, dtype=dtype, queries=(60, 150), keys=(0, 65), sinks=sinks)
    results = assert_matches_oracle(case)
    blind = slice(10, 90)
    assert (results["out"][blind] == 0).all() and (results["dq"][blind] == 0).all()
    expected = case.sinks.to(results["lse"].dtype) if sinks else torch.tensor(-torch.inf)
    assert (results["lse"][blind] == expected).all()
    if sinks and dtype == torch.float64:  # the share of such queries in a sink's gradient is dlse
        alone = make_case(tree, dtype=dtype, queries=(70, 150), keys=(0, 65), sinks=True)
        torch.testing.assert_close(run_regrow(alone)["dsinks"], alone.dlse.sum(1))


# No keys at all, no queries, neither, and an axis of nothing.
@FLOATS
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    "tree, rectangle",
    [
        (grpo_group(), {"keys": (7, 7)}),
        (grpo_group(), {"queries": (7, 7)}),
        (grpo_group(), {"queries": (9, 9), "keys": (7, 7)}),
        (grpo_group(), {"query_index": torch.zeros(0, dtype=torch.int64)}),
        (empty(), {}),
        (empty(), {"query_index": torch.zeros(0, dtype=torch.int64)}),
    ],
    ids=["no keys", "no queries", "neither", "empty index", "empty tree", "empty tree and index"],
)
def test_nothing_to_do(tree, rectangle, sinks, dtype):
    assert_matches_oracle(make_case(tree, dtype=dtype, sinks=sinks, **rectangle))


@FLOATS
def test_one_token(dtype):
    case = make_case(PrefixTree.from_nodes([-1], [1]), dtype=dtype, heads=(2, 2))
    results = assert_matches_oracle(case)
    assert torch.equal(results["out"], case.v)


# Keys that partly come after or beside all queries; scattered queries; a window that leaves the root behind.
@FLOATS
@pytest.mark.parametrize(
    "rectangle",
    [
        {"queries": (40, 60), "keys": (0, 121)},
        {"query_index": torch.tensor([35, 35, 60, 100])},
        {"query_index": torch.tensor([50, 55]), "window": 9},
        {"queries": (55, 64), "window": 6},
    ],
    ids=["interval", "indexed", "indexed, window", "interval, window"],
)
def test_what_no_query_sees_may_be_nan(isa, rectangle, dtype):
    case = make_case(grpo_group(), dtype=dtype, sinks=True, **rectangle)
    clean = run_regrow(case)
    case.k[_unseen(case)] = NAN
    case.v[_unseen(case)] = float("inf")
    assert 0 < _unseen(case).sum() < case.k.size(0)
    assert_same(run_regrow(case), clean)
    assert_matches_oracle(case)


def _unseen(case):
    positions = case.options.get("query_index")
    if positions is None:
        positions = case.options["query_start"] + torch.arange(case.q.size(0))
    keys = case.options["key_start"] + torch.arange(case.k.size(0))
    tree, window = case.tree, case.options.get("window")
    return ~regrow.reference.visible(tree.subtree_end, tree.position_ids, positions, keys, window).any(0)


# At a root, where it is the query's only key; within the trunk; in a branch, where only that branch sees it.
@FLOATS
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("token", [0, 20, 40])
@pytest.mark.parametrize("value", [NAN, torch.inf, -torch.inf])
def test_a_bad_key_reaches_those_that_see_it_and_no_others(isa, value, token, window, dtype):
    case = make_case(grpo_group(), dtype=dtype, window=window)
    clean = run_regrow(case)
    case.k[token] = value
    results, oracle = run_regrow(case), run_oracle(case, torch.float64)
    tree, every = case.tree, torch.arange(case.tree.num_tokens)
    sees = regrow.reference.visible(tree.subtree_end, tree.position_ids, every, every, window)[:, token]
    assert results["out"][sees].isnan().all() and oracle["out"][sees].isnan().all()
    assert results["lse"][sees].isnan().all()
    for name in ("out", "lse"):
        assert torch.equal(results[name][~sees], clean[name][~sees])


@FLOATS
def test_a_bad_value_reaches_all_that_see_it(isa, dtype):
    case = make_case(grpo_group(), dtype=dtype)
    case.v[40] = NAN
    assert run_regrow(case)["out"][40 : case.tree.subtree_end[40]].isnan().all()


@pytest.mark.parametrize("keys", [(0, 121), (3, 3)], ids=["keys", "no keys"])
def test_sinks_of_infinity_and_nan(isa, keys):
    """-inf is no sink; NaN reaches every row of its head."""
    case = make_case(grpo_group(), keys=keys, sinks=True)
    without = run_regrow(make_case(grpo_group(), keys=keys))
    case.sinks[:] = -torch.inf
    results = run_regrow(case)
    assert (results.pop("dsinks") == 0).all()
    assert_same(results, without)
    case.sinks[1] = NAN
    assert run_regrow(case)["lse"][:, 1].isnan().all()


# Beyond int32, where a comparison of depths would wrap.
@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**32, 2**62])
def test_a_window_beyond_every_path_is_none(window):
    assert_same(run_regrow(make_case(grpo_group(), window=window)), run_regrow(make_case(grpo_group(), window=1000)))
