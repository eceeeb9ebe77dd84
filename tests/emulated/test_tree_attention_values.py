"""NaN and infinity: in keys that nobody sees they may lie, in keys that are seen they reach who sees them."""

import pytest
import torch

from attention_cases import make_case, run_regrow
from named_trees import grpo_group
from regrow import PrefixTree, reference

ROWS = pytest.mark.parametrize("rows", [128, 64, 16])
SMALL = {"heads": (2, 1), "head_dim": 64, "value_dim": 64}


def _visible(case):
    positions = case.options.get("query_index")
    if positions is None:
        positions = case.options["query_start"] + torch.arange(case.q.size(0))
    keys = case.options["key_start"] + torch.arange(case.k.size(0))
    tree = case.tree
    return reference.visible(tree.subtree_end, tree.position_ids, positions, keys, case.options.get("window"))


# Keys after, before and beside all queries, in partial tiles and in ones that no query tile meets; a window that leaves
# the root behind; a last tile that the keys do not fill, so that NaN lies past the end of what the call may read.
UNSEEN = {
    "chunk": {"queries": (40, 60), "keys": (0, 146)},
    "scattered": {"query_index": torch.tensor([35, 35, 60, 100])},
    "window": {"queries": (55, 64), "window": 6},
    "scattered, window": {"query_index": torch.tensor([50, 55]), "window": 9},
    "some keys": {"queries": (100, 146), "keys": (20, 90)},
}


@ROWS
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_query_sees_may_be_anything(name, bad, partial, rows, attention):
    case = make_case(grpo_group(), dtype=torch.bfloat16, partial=partial, **SMALL, **UNSEEN[name])
    runner = attention(rows)
    clean = runner.once(case)
    # The last rows of larger arrays: what lies past the end of the call's keys is bad too.
    for kind in ("k", "v"):
        keys = getattr(case, kind)
        wide = torch.full((keys.size(0) + 80, *keys.shape[1:]), bad, dtype=keys.dtype)
        wide[: keys.size(0)] = keys
        setattr(case, kind, wide[: keys.size(0)])
    unseen = ~_visible(case).any(0)
    assert 0 < unseen.sum() < case.k.size(0)
    case.k[unseen], case.v[unseen] = bad, -bad
    ours = runner.check(case)
    assert all(torch.equal(ours[name], clean[name]) for name in clean)


# In a root's only key, within the trunk (a full tile for later branches), in one branch.
@ROWS
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("token", [0, 20, 40])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_key_reaches_those_that_see_it_and_no_others(bad, token, options, rows, attention):
    case = make_case(grpo_group(), dtype=torch.float16, **SMALL, **options)
    runner = attention(rows)
    clean = runner.once(case)
    case.k[token] = bad
    ours, cpu = runner.once(case, turn=token), run_regrow(case, gradients=False)
    sees = _visible(case)[:, token]
    for name in ("out", "lse"):
        assert ours[name][sees].isnan().all() and torch.equal(ours[name].isnan(), cpu[name].isnan())
        assert torch.equal(ours[name][~sees], clean[name][~sees])


# A score that is infinite, where `a_bad_key` has NaN: for all of a row's keys, or for one.
@ROWS
@pytest.mark.parametrize("options", [{}, {"window": 50}, {"softcap": 2.0}, {"sinks": True}, {"partial": True}], ids=str)
@pytest.mark.parametrize("keys", [slice(10, 11), slice(70, 80), slice(None)], ids=str)
@pytest.mark.parametrize("score", [torch.inf, -torch.inf])
def test_infinite_scores(score, keys, options, rows, attention):
    case = make_case(grpo_group(), dtype=torch.bfloat16, **SMALL, **options)
    case.q[..., 0] = 1
    case.k[keys, :, 0] = score
    runner = attention(rows)
    ours, cpu = runner.run(case), run_regrow(case, gradients=False)
    assert not cpu["lse"].isfinite().all() or "softcap" in options or score < 0
    for name in ("out", "lse"):
        for pattern in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(pattern(ours[name]), pattern(cpu[name])), f"{name}: {pattern.__name__}"
        finite = cpu[name].isfinite()
        torch.testing.assert_close(ours[name][finite], cpu[name][finite], rtol=2**-7, atol=2**-7)


@ROWS
def test_a_bad_value_reaches_all_that_see_it(rows, attention):
    case = make_case(grpo_group(), dtype=torch.bfloat16, **SMALL)
    case.v[40] = torch.nan
    assert attention(rows).run(case)["out"][_visible(case)[:, 40]].isnan().all()


# -inf is no sink; NaN reaches every row of its head, also of queries that see nothing; +inf takes all.
@ROWS
@pytest.mark.parametrize("keys", [(0, 40), (3, 3)], ids=["keys", "no keys"])
def test_sinks_of_infinity_and_nan(keys, rows, attention):
    tree = PrefixTree.from_nodes([-1, -1], [40, 40])  # the second half sees no key
    shape = {"heads": (4, 1), "head_dim": 64, "value_dim": 64, "keys": keys}
    case = make_case(tree, dtype=torch.bfloat16, sinks=True, **shape)
    case.sinks[:3] = torch.tensor([-torch.inf, torch.nan, torch.inf])
    runner = attention(rows)
    ours, cpu = runner.run(case), run_regrow(case, gradients=False)
    without = runner.once(make_case(tree, dtype=torch.bfloat16, **shape))
    assert torch.equal(ours["out"][:, 0], without["out"][:, 0]) and torch.equal(ours["lse"][:, 0], without["lse"][:, 0])
    assert ours["lse"][:, 1].isnan().all() and ours["lse"][:, 2].isposinf().all()
    for name in ("out", "lse"):
        torch.testing.assert_close(ours[name], cpu[name], rtol=2**-7, atol=2**-7, equal_nan=True)
