"""Useful pairs of a rectangle, against the mask."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from named_trees import named_trees
from regrow.performance.pairs import useful_pairs
from regrow.reference import visible

TREES = named_trees()


@settings(max_examples=150, derandomize=True, database=None)
@given(data=st.data())
def test_useful_pairs_are_the_visible_ones(data):
    tree = TREES[data.draw(st.sampled_from(sorted(TREES)))]
    position = st.integers(0, tree.num_tokens)
    first_key, last_key = sorted((data.draw(position), data.draw(position)))
    window = data.draw(st.sampled_from((None, 1, 7, 40)))
    if tree.num_tokens and data.draw(st.booleans()):
        positions = torch.tensor(sorted(data.draw(st.lists(st.integers(0, tree.num_tokens - 1), max_size=20))))
    else:
        first, last = sorted((data.draw(position), data.draw(position)))
        positions = torch.arange(first, last)
    positions = positions.long()
    mask = visible(tree.subtree_end, tree.position_ids, positions, torch.arange(first_key, last_key), window)
    arrays = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), positions.numpy()
    assert useful_pairs(*arrays, first_key, last_key - first_key, window) == int(mask.sum())


def test_all_of_an_axis_is_attention_pairs():
    for tree in TREES.values():
        arrays = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy(), slice(0, tree.num_tokens)
        assert useful_pairs(*arrays) == tree.attention_pairs()[0]
