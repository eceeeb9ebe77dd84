"""Trees that tests name: each function returns a `PrefixTree`, `named_trees()` all of them at test size."""

import random

from regrow.tree import PrefixTree


def _with_tokens(parent, lengths):
    return PrefixTree.from_nodes(parent, lengths, [(7 * t + 3) % 101 for t in range(sum(lengths))])


def chain(num_nodes=8, length=3):
    """One sequence, cut into nodes."""
    return _with_tokens(range(-1, num_nodes - 1), [length] * num_nodes)


def star(num_branches=16, prompt=5, length=4):
    """A prompt and equal branches."""
    return _with_tokens([-1] + [0] * num_branches, [prompt] + [length] * num_branches)


def grpo_group(num_responses=8, prompt=33, longest=29):
    """A prompt and responses of any length."""
    lengths = [1 + (11 * response) % longest for response in range(num_responses)]
    return _with_tokens([-1] + [0] * num_responses, [prompt, *lengths])


def comb(depth=16, length=4):
    """A spine with a tooth at every node; nodes 0, 2, 4, ... are the spine."""
    parent = [-1]
    for spine in range(0, 2 * depth, 2):
        parent += [spine, spine]
    return _with_tokens(parent, [length] * len(parent))


def binary(depth=4, length=3):
    num_nodes = 2**depth - 1
    return _with_tokens([(node - 1) // 2 for node in range(num_nodes)], [length] * num_nodes)


def conversation():
    """Turns that branch at several depths, beside a second conversation."""
    return _with_tokens([-1, 0, 0, 1, 1, 3, 3, 3, 2, -1, 9, 9], [12, 5, 7, 3, 9, 4, 4, 6, 10, 5, 6, 7])


def single_tokens(num_nodes=64, seed=0):
    """A draft tree: every node is one token."""
    rng = random.Random(seed)
    return _with_tokens([-1] + [rng.randrange(node) for node in range(1, num_nodes)], [1] * num_nodes)


def ragged(num_nodes=40, longest=37, seed=0):
    """Any shape, any lengths, several roots, nodes in shuffled order."""
    rng = random.Random(seed)
    parent = [rng.randrange(-1, node) for node in range(num_nodes)]
    shuffled = rng.sample(range(num_nodes), num_nodes)
    moved = [0] * num_nodes
    for node, above in enumerate(parent):
        moved[shuffled[node]] = -1 if above < 0 else shuffled[above]
    return _with_tokens(moved, [rng.randint(1, longest) for _ in range(num_nodes)])


def empty():
    return PrefixTree.from_nodes([], [], [])


def named_trees():
    """{name: tree}"""
    makers = (chain, star, grpo_group, comb, binary, conversation, single_tokens, ragged, empty)
    return {make.__name__: make() for make in makers}
