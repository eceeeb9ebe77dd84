"""A small plain module that follows the replay protocol, and the same module under dense attention of its own."""

import torch
from torch import nn

from regrow import PrefixTree
from regrow.replay import Head, Replayable

VOCABULARY, WIDTH, HEAD_DIM = 13, 16, 8


class Layer(nn.Module):
    """Four query heads on two key heads; `options` go to attend, `sinks` are a parameter."""

    def __init__(self, options, sinks):
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 8 * HEAD_DIM)
        self.out = nn.Linear(4 * HEAD_DIM, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))
        self.sinks = nn.Parameter(torch.randn(4)) if sinks else None
        self.options = options

    def forward(self, x, attend):
        q, k, v = self.qkv(self.norm(x)).view(len(x), 8, HEAD_DIM).split([4, 2, 2], 1)
        x = x + self.out(attend(self, 2 * q, 2 * k, v, sinks=self.sinks, **self.options).reshape(len(x), -1))
        return x + self.mlp(self.mlp_norm(x))


class Policy(Replayable):
    """Learned positions, and layers as `layers` says: the options of each; head: scale and softcap."""

    def __init__(self, *layers, sinks=False, head=(1.0, None), seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.layers = nn.ModuleList(Layer(options, sinks) for options in layers or ({}, {}))
        self.head, self.head_options = nn.Linear(WIDTH, VOCABULARY, bias=False), head
        self.double()

    def hidden(self, tokens, position_ids, attend):
        x = self.embedding(tokens) + self.positions(position_ids)
        for layer in self.layers:
            x = layer(x, attend)
        return x

    def replay_hidden(self, segment):
        return self.hidden(segment.tokens, segment.position_ids, segment.attend)

    def replay_head(self):
        return Head(self.head.weight, *self.head_options)

    def scores(self, hidden, targets):
        """Log-prob of each row's target, and the row's entropy, by plain torch."""
        scale, softcap = self.head_options
        logits = scale * self.head(hidden)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logp = logits.log_softmax(-1)
        return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def sequences_alone(policy, tree):
    """logp and entropy [sequences end to end], each sequence by itself; 0 at first tokens."""
    results = []
    for tokens in tree.unpack(tree.tokens).split(tree.cu_seqlens.diff().tolist()):
        positions = torch.arange(len(tokens))
        hidden = policy.hidden(tokens, positions, DenseAttention(positions[None] <= positions[:, None], positions))
        scores = policy.scores(hidden[:-1], tokens[1:])
        results.append([torch.cat([score.new_zeros(1), score]) for score in scores])
    return [torch.cat(parts) for parts in zip(*results, strict=True)]


def packed(policy, tree, segment_of=None):
    """logp and entropy [T] of the whole tree at once; keys of other segments than a query's own are detached."""
    axis = torch.arange(tree.num_tokens)
    mask = (axis[None] <= axis[:, None]) & (axis[:, None] < tree.subtree_end[None])
    foreign = None if segment_of is None else segment_of[:, None] != segment_of[None]
    hidden = policy.hidden(tree.tokens, tree.position_ids, DenseAttention(mask, tree.position_ids, foreign))
    scored = tree.parent_index >= 0
    scores = policy.scores(hidden[tree.parent_index[scored]], tree.tokens[scored])
    return [score.new_zeros(tree.num_tokens).masked_scatter(scored, score) for score in scores]


class DenseAttention:
    """`attend` in plain torch. mask [T,T]: whether a query sees a key; foreign [T,T]: whether it sees it detached."""

    def __init__(self, mask, position_ids, foreign=None):
        self.mask, self.distance = mask, position_ids[:, None] - position_ids[None]
        self.foreign = torch.zeros_like(mask) if foreign is None else foreign

    def __call__(self, layer, q, k, v, *, scale=None, window=None, softcap=None, sinks=None):
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
        own, other = (torch.einsum("qhd,khd->hqk", q, key) for key in (k, k.detach()))
        scores = torch.where(self.foreign, other, own) * (q.size(-1) ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        mask = self.mask if window is None else self.mask & (self.distance < window)
        scores = scores.masked_fill(~mask, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, q.size(0), 1)], -1)
        weights = scores.softmax(-1)[..., : k.size(0)]
        parts = (weights.masked_fill(self.foreign, 0.0), v), (weights.masked_fill(~self.foreign, 0.0), v.detach())
        return sum(torch.einsum("hqk,khd->qhd", weight, value) for weight, value in parts)


def random_tree(parent, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return PrefixTree.from_nodes(parent, lengths, torch.randint(VOCABULARY, (sum(lengths),), generator=generator))
