"""Trees and rectangles that the forward and the backward are tested with on a device."""

import pytest
import torch

import regrow

each_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def group_tree(size):
    """A GRPO group whose responses start and end in the middle of tiles."""
    return regrow.PrefixTree.from_nodes([-1] + [0] * 8, [size(4099, 43)] + [size(509 + 7 * i, 5 + i) for i in range(8)])


def drafts(size):
    """Draft trees of single tokens behind contexts of their own, and the drafts' places: the queries of one call."""
    context, count = size(2048, 30), 16
    parent, lengths, queries, position = [], [], [], 0
    for _ in range(4):
        root = len(parent)
        parent += [-1] + [root + max(0, i // 2) for i in range(count)]
        lengths += [context] + [1] * count
        queries += range(position + context, position + context + count)
        position += context + count
    return regrow.PrefixTree.from_nodes(parent, lengths), torch.tensor(queries)


def last_of_leaves(tree):
    return tree.gather_index[tree.cu_seqlens[1:] - 1].sort().values


# Name -> the rectangle's options, from the tree: the uses in docs/design.md, "One primitive".
FORMS = {
    "all x all": lambda tree: {},
    "a chunk": lambda tree: {
        "queries": (tree.num_tokens // 3, tree.num_tokens // 2),
        "keys": (0, tree.num_tokens // 2),
    },
    "one branch against its path": lambda tree: {
        "queries": (int(tree.node_start[3]), int(tree.node_start[4])),
        "keys": (0, int(tree.node_start[4])),
    },
    "a block of keys": lambda tree: {"keys": (3, tree.num_tokens // 2), "partial": True},
    "keys after all queries": lambda tree: {"queries": (0, 9), "keys": (30, 70), "partial": True},
    "decoding": lambda tree: {"query_index": last_of_leaves(tree)},
    "one query": lambda tree: {"queries": (tree.num_tokens - 1, tree.num_tokens)},
    "scattered queries": lambda tree: {
        "query_index": torch.randint(tree.num_tokens, (100,), generator=torch.Generator().manual_seed(0)).sort().values
    },
    "no queries": lambda tree: {"queries": (5, 5)},
    "no keys": lambda tree: {"keys": (5, 5)},
}
OPTIONS = {
    "plain": {},
    "window": {"window": 37},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "everything": {"window": 50, "softcap": 2.0, "sinks": True, "scale": 0.3},
}
