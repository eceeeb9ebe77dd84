"""Tree attention on 2,000 random trees, both directions; tree, shape, dtype and options are drawn independently."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import assert_matches_oracle, make_case
from regrow import PrefixTree

# No GQA and no head shared; ratios of powers of two and not; one whose tile of queries must shrink (17 x 64 rows).
HEADS = ((1, 1), (2, 2), (3, 1), (4, 1), (6, 2), (8, 1), (9, 3), (17, 1))
# Below, at and above the widths of a vector, of a panel, of a tile of keys (128) and of one of queries (64).
LENGTHS = (1, 2, 3, 7, 16, 33, 64, 129)
HEAD_DIMS = st.sampled_from(range(8, 257, 8))


@st.composite
def trees(draw):
    lengths = draw(st.lists(st.sampled_from(LENGTHS), max_size=8))
    return PrefixTree.from_nodes([draw(st.integers(-1, node - 1)) for node in range(len(lengths))], lengths)


@st.composite
def intervals(draw, size):
    first, last = draw(st.integers(0, size)), draw(st.integers(0, size))
    return min(first, last), max(first, last)


@st.composite
def rectangles(draw, tree):
    """All x all, an interval of queries or scattered ones (some twice), against an interval of keys."""
    kind = draw(st.sampled_from(("all", "interval", "indexed")))
    if kind == "all":
        return {}
    rectangle = {"keys": draw(intervals(tree.num_tokens))}
    if kind == "interval":
        return rectangle | {"queries": draw(intervals(tree.num_tokens))}
    if not tree.num_tokens:
        return rectangle | {"query_index": torch.zeros(0, dtype=torch.int64)}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    index = torch.randint(tree.num_tokens, (draw(st.sampled_from((1, 10, 100))),), generator=generator)
    return rectangle | {"query_index": index.sort().values}


@st.composite
def cases(draw, dtype):
    tree = draw(trees())
    partial = draw(st.booleans())
    return make_case(
        tree,
        dtype=dtype,
        heads=draw(st.sampled_from(HEADS)),
        head_dim=draw(HEAD_DIMS),
        value_dim=draw(HEAD_DIMS),
        scale=draw(st.sampled_from((None, 0.02, 0.3, -0.2))),
        window=draw(st.sampled_from((None, 1, 2, 9, 50, 127, 1000))),
        softcap=draw(st.sampled_from((None, 0.5, 5.0, 50.0))),
        sinks=not partial and draw(st.booleans()),
        partial=partial,
        seed=draw(st.integers(0, 2**32 - 1)),
        **draw(rectangles(tree)),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@settings(max_examples=500, derandomize=True, database=None)
@given(data=st.data())
def test_random_trees(dtype, data):
    assert_matches_oracle(data.draw(cases(dtype)))
