"""Tree attention's options and shapes: window, softcap, sinks, scale; head groups, head dims, strides."""

import itertools

import pytest
import torch

from attention_cases import make_case
from named_trees import comb, conversation, grpo_group
from regrow import PrefixTree

ROWS = pytest.mark.parametrize("rows", [64, 16])
SMALL = {"heads": (2, 1), "head_dim": 64, "value_dim": 64}

# Each alone and all together: a window that leaves the trunk behind, a softcap that bends, sinks.
OPTIONS = [
    {name: value for name, value in zip(("window", "softcap", "sinks"), values, strict=True) if value}
    for values in itertools.product((None, 30), (None, 1.5), (False, True))
]


@ROWS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_alone_and_together(options, rows, attention):
    attention(rows).check(make_case(grpo_group(), dtype=torch.bfloat16, **SMALL, **options))


# Of one key; of a few, so that in a key tile some keys fall out between two that stay (a branch and its trunk lie apart
# on the axis, and the branches between them are not seen); one less and one more than the longest path.
@ROWS
@pytest.mark.parametrize("window", [1, 2, 40, 61, 62, 2**31])
def test_windows_with_holes(window, rows, attention):
    tree = PrefixTree.from_nodes([-1, 0, 0, 0], [32, 30, 60, 30])  # the last branch sees keys 0..31 and 122..151
    queries = (122, 152)
    attention(rows).check(make_case(tree, dtype=torch.float16, window=window, queries=queries, **SMALL))


@pytest.mark.parametrize("head_dim, rows", [(64, 128), (128, 64), (256, 16)])
def test_window_over_many_tiles(head_dim, rows, attention):
    """Full tiles behind the window, partial at its edge."""
    tree = PrefixTree.from_nodes([-1, 0, 0], [170, 60, 40])
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim}
    attention(rows).check(make_case(tree, dtype=torch.bfloat16, window=120, **shape))


# The sign of a scale turns the order of scores around; 0 makes them equal; the last is 0 in fp32.
@ROWS
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("scale", [-0.125, 0.0, -0.0, 1e-50])
def test_scales(scale, softcap, rows, attention):
    options = {"scale": scale, "softcap": softcap, "sinks": True}
    attention(rows).check(make_case(conversation(), dtype=torch.bfloat16, **SMALL, **options))


# 1e4 saturates the softmax and, with a softcap, tanh; 1e-4 leaves it flat and tanh in its linear part.
@ROWS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("score", [1e4, 1e-4])
def test_huge_and_tiny_scores(score, softcap, dtype, rows, attention):
    options = {"scale": 64**-0.5, "softcap": softcap, "sinks": True}
    results = attention(rows).check(make_case(comb(), dtype=dtype, magnitude=score**0.5, **SMALL, **options))
    assert all(result.isfinite().all() for result in results.values())


@ROWS
def test_huge_values(rows, attention):
    case = make_case(comb(), dtype=torch.bfloat16, **SMALL)
    case.v.mul_(1e30)
    attention(rows).check(case)


# (query heads, KV heads) and what of a group shares a tile. Groups that divide the rows, and not: rows are left over;
# a group as large as the tile, larger by a divisor (16 of 32, of 48: several units), larger with none (17: one each).
HEADS = [(1, 1), (3, 3), (3, 1), (6, 2), (7, 1), (14, 2), (16, 1), (32, 1), (48, 1), (34, 2), (17, 1)]


@ROWS
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_head_groups(heads, rows, attention):
    case = make_case(
        conversation(), dtype=torch.bfloat16, heads=heads, head_dim=64, value_dim=64, sinks=True, queries=(50, 78)
    )
    attention(rows).check(case)


@pytest.mark.parametrize("heads", [(7, 1), (48, 1), (128, 1), (256, 2)], ids=str)
def test_head_groups_of_128_rows(heads, attention):
    case = make_case(
        conversation(), dtype=torch.float16, heads=heads, head_dim=64, value_dim=64, sinks=True, queries=(70, 74)
    )
    attention(128).check(case)


# (head dim, value dim, rows): narrower than their table entry; one narrower than the other, either way, and by more
# than a whole warp of columns; one 16-byte chunk.
HEAD_DIMS = [
    (72, 72, 64), (72, 72, 16), (96, 40, 64), (96, 40, 16), (40, 96, 16), (192, 128, 64), (192, 128, 16),
    (8, 8, 128), (8, 8, 64), (8, 8, 16), (8, 256, 16), (256, 8, 16), (96, 96, 128), (120, 88, 128),
]  # fmt: skip


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("head_dim, value_dim, rows", HEAD_DIMS)
def test_head_dims(head_dim, value_dim, rows, partial, attention):
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": value_dim}
    attention(rows).check(make_case(conversation(), dtype=torch.bfloat16, partial=partial, **shape))


@ROWS
@pytest.mark.parametrize("heads_first", [False, True])
def test_strided_inputs(heads_first, rows, attention):
    """Rows apart, as of a fused projection, or heads apart; what lies between is NaN."""
    case = make_case(conversation(), dtype=torch.bfloat16, heads=(4, 2), head_dim=64, value_dim=40)
    contiguous = attention(rows).check(case)
    for name in ("q", "k", "v"):
        x = getattr(case, name)
        tokens, heads, dim = x.shape
        if heads_first:
            wide = torch.full((heads, tokens + 3, dim + 8), torch.nan, dtype=x.dtype)
            view = wide[:, 2 : tokens + 2, :dim].transpose(0, 1)
        else:
            wide = torch.full((tokens, heads + 2, dim + 16), torch.nan, dtype=x.dtype)
            view = wide[:, 1 : heads + 1, 8 : dim + 8]
        setattr(case, name, view.copy_(x))
        assert not getattr(case, name).is_contiguous()
    strided = attention(rows).run(case)
    assert all(torch.equal(strided[name], contiguous[name]) for name in contiguous)
