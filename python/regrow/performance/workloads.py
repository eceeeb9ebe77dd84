"""Calls that docs/performance.md prices: (tree, query_index) each, with 32 query / 8 KV heads of 128."""

import torch

from regrow.tree import PrefixTree

HEADS, DIM = (32, 8), 128


def grpo():
    return PrefixTree.from_nodes([-1] + [0] * 8, [32768] + [1024] * 8), None


def conversation():
    """Every turn is answered in two ways, eight turns deep."""
    parent = [(node - 1) // 2 if node else -1 for node in range(255)]
    return PrefixTree.from_nodes(parent, [1024] + [128] * 254), None


def sequences(context, drafts):
    """Contexts with a chain of `drafts[i]` tokens behind each, which are the queries."""
    parent, places = [], []
    for i, count in enumerate(drafts):
        parent += [-1, 2 * i]
        start = sum(drafts[:i]) + (i + 1) * context
        places += range(start, start + count)
    lengths = [length for count in drafts for length in (context, count)]
    return PrefixTree.from_nodes(parent, lengths), torch.tensor(places)


def verification(drafts=(16,) * 32):
    return sequences(16384, drafts)


def decoding():
    return sequences(8191, [1] * 64)


def long_decoding():
    return sequences(131071, [1])


def prefill(length=4096):
    return PrefixTree.from_nodes([-1], [length]), None
