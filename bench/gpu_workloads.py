"""The attention workloads of the GPU benches. Every tree is a batch of trees of equal length, one after the other."""

import random
from dataclasses import dataclass

import torch

import regrow

HEADS, DIM = (32, 8), 128


@dataclass(eq=False)  # each is itself: peers keep what they prepare for one
class Workload:
    name: str
    tree: regrow.PrefixTree
    batch: int = 1  # trees of equal length
    query_index: torch.Tensor | None = None  # all tokens by default; as many of each tree
    is_tree: bool = False  # branches share something: every peer is to be beaten
    chains: bool = False  # each tree is a chain and its queries are its last tokens
    goals: tuple = (None, None)  # bar and aim for the share of the floor

    @property
    def num_queries(self):
        return self.tree.num_tokens if self.query_index is None else self.query_index.size(0)

    def to(self, device):
        index = None if self.query_index is None else self.query_index.to(device)
        return Workload(**{**vars(self), "tree": self.tree.to(device), "query_index": index})

    def tensors(self, dtype, seed=0):
        """q [Tq,Hq,D], k and v [T,Hkv,D], random, on the tree's device."""
        device = self.tree.subtree_end.device
        generator = torch.Generator(device).manual_seed(seed)
        shapes = ((self.num_queries, HEADS[0]), (self.tree.num_tokens, HEADS[1]), (self.tree.num_tokens, HEADS[1]))
        return [torch.empty(*shape, DIM, dtype=dtype, device=device).normal_(generator=generator) for shape in shapes]

    def places(self):
        """Within each tree: query positions [B,n] and subtree ends [B,L], int64."""
        tree, device = self.tree, self.tree.subtree_end.device
        length = tree.num_tokens // self.batch
        first = torch.arange(self.batch, device=device)[:, None] * length
        index = torch.arange(tree.num_tokens, device=device) if self.query_index is None else self.query_index
        return index.view(self.batch, -1) - first, tree.subtree_end.long().view(self.batch, -1) - first


def chain(length):
    return Workload(f"chain of {length:,}", regrow.PrefixTree.from_nodes([-1], [length]), chains=True)


def grpo(prompt, responses, length):
    tree = regrow.PrefixTree.from_nodes([-1] + [0] * responses, [prompt] + [length] * responses)
    return Workload(f"GRPO group, {responses} x {length:,} over {prompt:,}", tree, is_tree=True)


def conversation(prompt, depth, length):
    """Every turn is answered in two ways, `depth` nodes from root to leaf."""
    parent = [(node - 1) // 2 if node else -1 for node in range(2**depth - 1)]
    tree = regrow.PrefixTree.from_nodes(parent, [prompt] + [length] * (len(parent) - 1))
    return Workload(f"conversation of depth {depth}, {length:,} tokens a turn after {prompt:,}", tree, is_tree=True)


def sequences(name, count, context, drafts, parents, **more):
    """`count` contexts with `drafts` single tokens behind each, whose parents `parents(i, rng)` chooses; -1 is the end
    of the context. The drafts are the queries."""
    rng = random.Random(0)
    parent, lengths = [], []
    for _ in range(count):
        root = len(parent)
        parent += [-1] + [root + 1 + parents(i, rng) for i in range(drafts)]
        lengths += [context] + [1] * drafts
    tree = regrow.PrefixTree.from_nodes(parent, lengths)
    places = torch.arange(count)[:, None] * (context + drafts) + context + torch.arange(drafts)
    return Workload(name, tree, batch=count, query_index=places.flatten(), **more)


def verification(count, drafts, context, shape):
    def in_a_tree(i, rng):
        return rng.randrange(-1, i) if i else -1

    name = f"verification, {count} x {drafts} drafts in a {shape} over {context:,}"
    parents = in_a_tree if shape == "tree" else lambda i, rng: i - 1
    return sequences(
        name, count, context, drafts, parents, is_tree=shape == "tree", chains=shape == "chain", goals=(0.8, None)
    )


def decoding(count, context):
    name = f"decoding, {count} sequences over {context:,}"
    return sequences(name, count, context - 1, 1, lambda i, rng: -1, chains=True)


def workloads():
    """At the sizes that are reported."""
    return [
        chain(4096),
        chain(16384),
        grpo(32768, 8, 1024),
        conversation(1024, 8, 128),
        verification(32, 16, 16384, "tree"),
        verification(32, 16, 16384, "chain"),
        decoding(64, 8192),
    ]


def small_workloads():
    """The same code paths, for the oracle: in the order of workloads()."""
    return [
        chain(300),
        chain(700),
        grpo(333, 4, 65),
        conversation(70, 4, 33),
        verification(3, 16, 520, "tree"),
        verification(3, 16, 520, "chain"),
        decoding(5, 420),
    ]
