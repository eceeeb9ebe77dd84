"""The attention workloads of the GPU benches. Every tree is a batch of trees of equal length, one after the other."""

import random
from dataclasses import dataclass

import torch

import regrow
from regrow.performance import workloads as shapes
from regrow.performance.workloads import DIM, HEADS


@dataclass(eq=False)  # each is itself: peers keep what they prepare for one
class Workload:
    name: str
    tree: regrow.PrefixTree
    batch: int = 1  # trees of equal length
    query_index: torch.Tensor | None = None  # all tokens by default; as many of each tree
    is_tree: bool = False  # branches share something: every peer is to be beaten
    chains: bool = False  # each tree is a chain and its queries are its last tokens
    goals: tuple = (None, None)  # bar and aim for the share of the floor
    training_goal: float = 1  # how many times faster than FlashAttention over every sequence, forward and backward
    published: float | None = None  # TFLOP/s of FlashAttention-2's backward on an H100, no mask

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


def chain(length, **more):
    tree, _ = shapes.prefill(length)
    return Workload(f"chain of {length:,}", tree, chains=True, **more)


def grpo(prompt, responses, length, **more):
    tree, _ = shapes.grpo(prompt, responses, length)
    return Workload(f"GRPO group, {responses} x {length:,} over {prompt:,}", tree, is_tree=True, **more)


def conversation(prompt, depth, length):
    tree, _ = shapes.conversation(prompt, depth, length)
    return Workload(f"conversation of depth {depth}, {length:,} tokens a turn after {prompt:,}", tree, is_tree=True)


def verification(count, drafts, context, shape):
    """`drafts` tokens behind each context: a tree of single tokens, or a chain."""
    rng = random.Random(0)
    parent_of = (lambda n: rng.randrange(-1, n) if n else -1) if shape == "tree" else None
    tree, index = shapes.verification((drafts,) * count, context, parent_of)
    name = f"verification, {count} x {drafts} drafts in a {shape} over {context:,}"
    kind = {"is_tree": True} if shape == "tree" else {"chains": True}
    return Workload(name, tree, batch=count, query_index=index, goals=(0.8, None), **kind)


def decoding(count, context):
    tree, index = shapes.decoding(count, context)
    name = f"decoding, {count} sequences over {context:,}"
    return Workload(name, tree, batch=count, query_index=index, chains=True)


def workloads():
    """Of the forward, at the sizes that are reported."""
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


# FlashAttention-2's backward on an H100, head dim 128, 32,768 tokens without a mask (issue 1051 of its repository):
# with one it is slower. DualKV's speed-up of forward and backward over it for 28 responses to 32K.
PUBLISHED_BACKWARD, DUAL_KV = 337.0, 6.0


def training_workloads():
    """Of the backward, at the sizes that are reported."""
    return [
        chain(4096),
        chain(16384, published=PUBLISHED_BACKWARD),
        grpo(32768, 8, 1024),
        grpo(32768, 28, 1024, training_goal=DUAL_KV),
        conversation(1024, 8, 128),
    ]


def small_training_workloads():
    """The same code paths, for the oracle: in the order of training_workloads()."""
    return [chain(300), chain(700), grpo(333, 4, 65), grpo(200, 7, 40), conversation(70, 4, 33)]
