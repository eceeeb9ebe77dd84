"""Calls that are priced and measured: (tree, query_index) each, with 32 query / 8 KV heads of 128.

The sizes by default are those of docs/performance.md.
"""

import torch

from regrow.tree import PrefixTree

HEADS, DIM = (32, 8), 128


def prefill(length=4096):
    return PrefixTree.from_nodes([-1], [length]), None


def grpo(prompt=32768, responses=8, length=1024):
    return PrefixTree.from_nodes([-1] + [0] * responses, [prompt] + [length] * responses), None


def conversation(prompt=1024, depth=8, length=128):
    """Every turn is answered in two ways, `depth` nodes from root to leaf."""
    parent = [(node - 1) // 2 if node else -1 for node in range(2**depth - 1)]
    return PrefixTree.from_nodes(parent, [prompt] + [length] * (len(parent) - 1)), None


def sequences(context, drafts, parent_of=None):
    """Contexts with `drafts[i]` tokens behind each, which are the queries.

    They are a chain, or single tokens, the n-th behind the one with the number `parent_of(n)`, -1 for the context.
    """
    parent, lengths, places, start = [], [], [], 0
    for count in drafts:
        root = len(parent)
        if parent_of is None:
            parent += [-1, root]
            lengths += [context, count]
        else:
            parent += [-1] + [root + 1 + parent_of(n) for n in range(count)]
            lengths += [context] + [1] * count
        places += range(start + context, start + context + count)
        start += context + count
    return PrefixTree.from_nodes(parent, lengths), torch.tensor(places)


def verification(drafts=(16,) * 32, context=16384, parent_of=None):
    return sequences(context, drafts, parent_of)


def decoding(count=64, context=8192):
    return sequences(context - 1, [1] * count)


def long_decoding():
    return decoding(1, 131072)
