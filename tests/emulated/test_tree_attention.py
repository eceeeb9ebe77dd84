"""Tree attention in each configuration, over the named trees, and over nodes that start at each offset of a tile."""

import itertools

import pytest
import torch

from attention_cases import make_case
from attention_runs import CONFIGURATIONS, KEY_TILE
from named_trees import comb, named_trees, ragged
from regrow import PrefixTree

DTYPES = (torch.bfloat16, torch.float16)

# At test size but for one, of which a third says as much.
TREES = named_trees() | {"ragged": ragged(num_nodes=9)}

# What instantiates the kernel's general form: each alone, since each could be the only one to work, and two together.
GENERAL = itertools.cycle([{"window": 9}, {"softcap": 3.0}, {"scale": -0.2}, {"window": 20, "softcap": 5.0}])
NAMED = [
    (*configuration, dtype, next(GENERAL) if general else {}, name)
    for configuration, general, dtype, name in itertools.product(CONFIGURATIONS, (False, True), DTYPES, TREES)
]


@pytest.mark.parametrize("head_dim, rows, dtype, options, tree", NAMED, ids=str)
def test_named_trees(head_dim, rows, dtype, options, tree, attention):
    heads = (2, 1) if rows == 128 else (1, 1)
    case = make_case(TREES[tree], dtype=dtype, heads=heads, head_dim=head_dim, value_dim=head_dim, **options)
    attention(rows).check(case)


@pytest.mark.parametrize("rows", [128, 64, 16])
@pytest.mark.parametrize("window", [None, 17])
def test_nodes_that_start_at_each_offset_of_a_tile_together(rows, window, attention):
    tree = comb(depth=32, length=3)
    assert {start % KEY_TILE for start in tree.node_start.tolist()} == set(range(KEY_TILE))
    attention(rows).check(make_case(tree, dtype=torch.bfloat16, heads=(1, 1), head_dim=64, value_dim=64, window=window))


# A fork at the offset and nowhere else; the tile before it is full for both branches, or partial.
@pytest.mark.parametrize("rows", [64, 16])
@pytest.mark.parametrize("offset", range(KEY_TILE))
def test_a_fork_at_an_offset(rows, offset, attention):
    prompt = [-1] if offset else []
    tree = PrefixTree.from_nodes(prompt + [len(prompt) - 1] * 2, [offset] * len(prompt) + [20, 70])
    case = make_case(tree, dtype=torch.float16, heads=(1, 1), head_dim=64, value_dim=64, queries=(offset, offset + 50))
    runner = attention(rows)
    runner.compare(case, runner.once(case, turn=offset))
