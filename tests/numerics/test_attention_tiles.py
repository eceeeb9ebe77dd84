"""Named trees, and forks at each offset of a tile, on every instruction set."""

import pytest
import torch

from attention_cases import assert_matches_oracle, make_case
from named_trees import named_trees, ragged
from regrow import PrefixTree

TREES = named_trees() | {"ragged": ragged(num_nodes=18)}
GENERAL = {"window": 20, "softcap": 2.0, "sinks": True}


# fp64 and fp32 are their own operands; bf16 has one of its own where the machine multiplies it; fp16 is converted. Each
# in the plain kernel or the general one, which has windows and softcap; a window narrower than most nodes.
@pytest.mark.parametrize(
    "dtype, options",
    [
        (torch.float64, GENERAL),
        (torch.float32, {}),
        (torch.float32, {"window": 5}),
        (torch.bfloat16, {}),
        (torch.bfloat16, GENERAL),
        (torch.float16, GENERAL),
    ],
    ids=["fp64, general", "fp32, plain", "fp32, window", "bf16, plain", "bf16, general", "fp16, general"],
)
@pytest.mark.parametrize("name", TREES)
def test_named_trees(isa, name, dtype, options):
    assert_matches_oracle(make_case(TREES[name], dtype=dtype, head_dim=8, value_dim=16, **options))


# Past a tile of keys (128), two of queries (64) and the width of every panel: a root of any length up to there, two
# branches, and a third from within the first.
# Seventeen heads share tiles of 8 queries.
@pytest.mark.parametrize(
    "offset, group", [(offset, 1) for offset in range(131)] + [(offset, 17) for offset in range(18)]
)
def test_a_fork_at_each_offset_of_a_tile(offset, group):
    parent, lengths = ([-1, 0, 0, 1], [offset, 9, 70, 30]) if offset else ([-1, -1, 0], [9, 70, 30])
    tree = PrefixTree.from_nodes(parent, lengths)
    assert_matches_oracle(make_case(tree, heads=(group, 1), head_dim=8, value_dim=8, seed=offset))


# The same where bf16 packs two rows into one operand, and where fp64 halves the panel.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("offset", range(0, 131, 7))
def test_a_fork_in_other_panels(offset, dtype):
    tree = PrefixTree.from_nodes([-1, 0, 0, 1], [offset + 1, 9, 70, 30])
    assert_matches_oracle(make_case(tree, dtype=dtype, heads=(3, 1), head_dim=8, value_dim=8, seed=offset))


# Every width that the vectors of some instruction set leave a rest of; V's differs from that of Q and K.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim, value_dim", [(dim, 264 - dim) for dim in range(8, 257, 8)])
def test_every_head_dim(isa, head_dim, value_dim, dtype):
    tree = TREES["chain"]
    assert_matches_oracle(make_case(tree, dtype=dtype, heads=(2, 1), head_dim=head_dim, value_dim=value_dim))


# The starts of an interval fall anywhere in a tile of the axis; the first ones leave queries without any key.
@pytest.mark.parametrize("first_key", (0, 1, 15, 17, 63, 65, 100, 140))
@pytest.mark.parametrize("first_query", (0, 31, 33, 127))
def test_rectangles_anywhere(first_query, first_key):
    tree = TREES["grpo_group"]
    queries, keys = (first_query, tree.num_tokens - 2), (first_key, tree.num_tokens - 1)
    assert_matches_oracle(make_case(tree, queries=queries, keys=keys, sinks=True))
