"""NaN and infinity in the backward: in keys that nobody sees they may lie, in what is seen they reach who sees it."""

import pytest
import torch

from attention_cases import make_case
from backward_runs import forward, on_cpu, visible
from named_trees import chain, grpo_group
from regrow import PrefixTree

DIMS = pytest.mark.parametrize("head_dim", [64, 256])


def _case(head_dim, tree=None, **more):
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": head_dim, "dtype": torch.bfloat16}
    return make_case(tree or grpo_group(), **shape | more)


# Keys after, before and beside all queries, in partial tiles and in ones that no query tile meets; a window that leaves
# the root behind; a last tile that the keys do not fill, so that NaN lies past the end of what the call may read.
UNSEEN = {
    "chunk": {"queries": (40, 60), "keys": (0, 146)},
    "scattered": {"query_index": torch.tensor([35, 35, 60, 100])},
    "window": {"queries": (55, 64), "window": 6},
    "scattered, window": {"query_index": torch.tensor([50, 55]), "window": 9},
    "some keys": {"queries": (100, 146), "keys": (20, 90)},
}


@DIMS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_query_sees_may_be_anything(name, bad, head_dim, backward):
    """And its accumulators keep their values, infinity and NaN too: 0 is added, which only makes -0 a 0."""
    case = _case(head_dim, **UNSEEN[name])
    runner, given = backward(), forward(case)
    unseen = ~visible(case).any(0)
    assert 0 < unseen.sum() < case.k.size(0)
    into = {name: torch.zeros(getattr(case, name[1:]).shape) for name in ("dq", "dk", "dv")}
    for name in ("dk", "dv"):
        into[name][unseen] = torch.tensor([torch.nan, -0.0, torch.inf, 1.5]).repeat(head_dim // 4)
    clean = runner.once(case, given, into=into)
    for kind in ("k", "v"):
        keys = getattr(case, kind)
        wide = torch.full((keys.size(0) + 144, *keys.shape[1:]), bad, dtype=keys.dtype)
        wide[: keys.size(0)] = keys
        setattr(case, kind, wide[: keys.size(0)])
    case.k[unseen], case.v[unseen] = bad, -bad
    ours = runner.run(case, given, into=into)
    assert all(_same_bits(ours[name], clean[name]) for name in clean)
    for name in ("dk", "dv"):
        assert ours[name][~unseen].isfinite().all()
        numbers = ~into[name][unseen].isnan()
        assert torch.equal(ours[name][unseen][numbers], into[name][unseen][numbers])
        assert ours[name][unseen][~numbers].isnan().all()


def _same_bits(a, b):
    return a.view(torch.int32).equal(b.view(torch.int32))


# Weight 0 times NaN is NaN, so others of its tiles may be reached too, as in the dense oracle.
@DIMS
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
def test_a_bad_row_reaches_all_that_see_it(where, options, head_dim, backward):
    case = _case(head_dim, dtype=torch.float16, **options)
    row = 20 if where in "kv" else 50
    getattr(case, where)[row] = torch.nan
    ours, sees = backward().once(case, turn=row), visible(case)
    queries = sees[:, row] if where in "kv" else torch.arange(len(sees)) == row
    keys = sees[queries].any(0)
    assert ours["dq"][queries].isnan().all() and ours["dk"][keys].isnan().all()
    if where != "v":
        assert ours["dv"][keys].isnan().all()


# lse may be -inf (nothing seen), +inf or NaN (a bad score): the CPU's patterns.
@pytest.mark.parametrize("sink", [-torch.inf, torch.inf, torch.nan, 0.0])
@pytest.mark.parametrize("keys", [(0, 40), (3, 3)], ids=["keys", "no keys"])
def test_sinks_of_infinity_and_nan(keys, sink, backward):
    tree = PrefixTree.from_nodes([-1, -1], [40, 40])  # the second half sees no key
    case = _case(64, tree, keys=keys, sinks=True)
    case.sinks[0] = sink
    given = forward(case)
    ours, cpu = backward().run(case, given), on_cpu(case, given)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, cpu[name], rtol=2**-6, atol=2**-6, equal_nan=True, msg=name)
    if sink == -torch.inf:
        assert ours["dsinks"][0] == 0 and ours["dq"][:, 0].isfinite().all()


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_scores_of_minus_infinity(softcap, backward):
    """Keys of weight zero: what stands in them counts nowhere but in their own products."""
    case = _case(64, softcap=softcap)
    case.q[..., 0] = 1
    case.k[10, :, 0] = -torch.inf
    given = forward(case)
    ours, cpu = backward().once(case, given), on_cpu(case, given)
    for name in ours:
        assert torch.equal(ours[name].isnan(), cpu[name].isnan()), name


def test_rows_whose_scores_are_all_minus_infinity(backward):
    """Finite keys whose scores overflow: lse is -inf where keys are seen, and all weights are 0 as if none were."""
    case = _case(64)
    case.q[..., 0], case.k[..., 0] = 8, -3e38
    given = {"out": torch.zeros_like(case.dout), "lse": torch.full(case.q.shape[:2], -torch.inf)}
    ours, cpu = backward().once(case, given), on_cpu(case, given)
    for name in ours:
        assert (ours[name] == 0).all() and (cpu[name] == 0).all(), name


# Tiles that are full but for what no tensor has: 10 tokens, a group that leaves a row over, both; keys to the last.
@DIMS
@pytest.mark.parametrize("heads, tokens", [((1, 1), 10), ((3, 1), 21), ((3, 1), 10)], ids=str)
def test_rows_beyond_the_last_weigh_nothing(heads, tokens, head_dim, backward):
    """They are zeros, and times a key of -inf, which nobody gives weight, they would be NaN."""
    case = _case(head_dim, chain(4, 50), heads=heads, queries=(150, 150 + tokens), keys=(0, 128))
    case.q[..., 0] = 1
    case.k[10, :, 0] = -torch.inf
    runner = backward()
    assert not any(partial for _, _, partial in runner.plan(case).backward_tiles())
    ours = runner.run(case)
    assert (ours["dk"][10] == 0).all() and (ours["dv"][10] == 0).all()
    assert ours["dk"].isfinite().all() and ours["dv"].isfinite().all()


@DIMS
@pytest.mark.parametrize("num_keys", [63, 65, 130])
def test_keys_beyond_the_last_weigh_nothing(num_keys, head_dim, backward):
    """They are zeros, whose score 0 is infinitely more than those of the call."""
    case = _case(head_dim, chain(5, 50), heads=(1, 1), queries=(150, 214), keys=(0, num_keys))
    case.q[..., 0], case.k[..., 0] = 8, -2000
    ours = backward().check(case)
    assert all(gradient.isfinite().all() for gradient in ours.values())
