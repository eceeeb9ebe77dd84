"""The backward in each configuration, over the named trees, and over nodes that start at each offset of a panel."""

import itertools

import pytest
import torch

from attention_cases import make_case
from backward_runs import KEYS
from named_trees import comb, grpo_group, named_trees, ragged
from regrow import PrefixTree

DTYPES = (torch.bfloat16, torch.float16)

# At test size but for two, of which a half says as much.
TREES = named_trees() | {"grpo_group": grpo_group(num_responses=4), "ragged": ragged(num_nodes=5)}

# What instantiates the kernel's general form: each alone, since each could be the only one to work, and two together.
GENERAL = itertools.cycle([{"window": 9}, {"softcap": 3.0}, {"window": 20, "softcap": 5.0}])
NAMED = [
    (head_dim, dtype, next(GENERAL) if general else {}, name)
    for head_dim, general, dtype, name in itertools.product(KEYS, (False, True), DTYPES, TREES)
]


@pytest.mark.parametrize("head_dim, dtype, options, tree", NAMED, ids=str)
def test_named_trees(head_dim, dtype, options, tree, backward):
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim}
    backward().check(make_case(TREES[tree], dtype=dtype, sinks=dtype == torch.float16, **shape, **options))


@pytest.mark.parametrize("head_dim, window", [(64, None), (64, 17), (256, None)])
def test_nodes_that_start_at_each_offset_of_a_panel_together(head_dim, window, backward):
    tree = comb(depth=16, length=3)
    assert {start % 16 for start in tree.node_start.tolist()} == set(range(16))
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim}
    backward().check(make_case(tree, dtype=torch.bfloat16, window=window, **shape))


# A fork at the offset and nowhere else, in the first panel of a tile or in its last.
@pytest.mark.parametrize("panel", [0, 7])
@pytest.mark.parametrize("offset", range(16))
def test_a_fork_at_an_offset(offset, panel, backward):
    trunk = 16 * panel + offset
    prompt = [-1] if trunk else []
    tree = PrefixTree.from_nodes(prompt + [len(prompt) - 1] * 2, [trunk] * len(prompt) + [9, 30])
    case = make_case(tree, dtype=torch.float16, heads=(1, 1), head_dim=64, value_dim=64, queries=(trunk, trunk + 39))
    backward().check_once(case, turn=offset)
