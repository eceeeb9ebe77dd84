"""The picture: the mask's densities against the dense mask, and that a file is written whatever the tree."""

import sys

import numpy as np
import pytest
import torch

from named_trees import named_trees
from regrow.plot_tree import mask_density, node_rectangles
from regrow.tree import PrefixTree


def dense_density(tree, size):
    q, k = np.arange(tree.num_tokens)[:, None], np.arange(tree.num_tokens)[None]
    mask = (k <= q) & (q < tree.subtree_end.numpy()[None])
    edges = range(0, tree.num_tokens, size)
    return np.array([[mask[r : r + size, c : c + size].mean() for c in edges] for r in edges])


# Blocks of one token, blocks that do not divide the axis, and one block for all.
@pytest.mark.parametrize("blocks", [512, 16, 7, 1])
@pytest.mark.parametrize("name", [name for name in named_trees() if name != "empty"])
def test_mask_density(name, blocks):
    tree = named_trees()[name]
    density, size = mask_density(tree, blocks)
    assert density.shape[0] <= blocks or size == 1
    np.testing.assert_allclose(density, dense_density(tree, size), atol=1e-12)


def test_node_rectangles():
    tree = PrefixTree.from_nodes([-1, 0, 0, 2, 2], [4, 1, 2, 3, 5])
    leaf, below, depth, length = node_rectangles(tree)
    assert leaf.tolist() == [0, 0, 1, 1, 2] and below.tolist() == [3, 1, 2, 1, 1]
    assert depth.tolist() == [0, 4, 4, 6, 6] and length.tolist() == [4, 1, 2, 3, 5]


@pytest.mark.parametrize("name", [*named_trees(), "big"])
def test_plot_writes_a_png(name, tmp_path):
    big = PrefixTree.from_nodes(torch.arange(-1, 99_999) // 3, torch.ones(100_000, dtype=torch.int64))
    tree = big if name == "big" else named_trees()[name]
    tree.plot(tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"plot needs matplotlib: pip install regrow\[plot\]"):
        named_trees()["star"].plot(tmp_path / "tree.png")
