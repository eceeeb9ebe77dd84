"""A plain module small enough to enumerate, and what it computes for one sequence under dense attention."""

import math

import torch
from torch import nn

from regrow.replay import Head, Replayable

WIDTH, HEAD_DIM = 16, 8


class Layer(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * HEAD_DIM), nn.Linear(WIDTH, WIDTH)
        self.window = window

    def forward(self, x, attend):
        q, k, v = self.qkv(self.norm(x)).view(len(x), 4, HEAD_DIM).split([2, 1, 1], 1)
        return x + self.out(attend(self, 3 * q, 3 * k, v, window=self.window).reshape(len(x), -1))


class TinyPolicy(Replayable):
    """fp64, learned positions, a layer for each window (None: it sees all); sharp: how far from uniform it is."""

    def __init__(self, vocabulary=5, windows=(None, None), sharp=1.0, positions=1024, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(positions, WIDTH)
        self.layers = nn.ModuleList(map(Layer, windows))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        nn.init.normal_(self.head.weight, std=0.4 * sharp)
        self.double().eval()

    def hidden(self, tokens, position_ids, attend):
        x = self.embedding(tokens) + 0.3 * self.positions(position_ids)
        for layer in self.layers:
            x = layer(x, attend)
        return self.norm(x)

    def replay_hidden(self, segment):
        return self.hidden(segment.tokens, segment.position_ids, segment.attend)

    def replay_head(self):
        return Head(self.head.weight)

    @torch.no_grad()
    def states_alone(self, tokens):
        """Hidden states [S,H] of one sequence."""
        return self.hidden(torch.tensor(tokens), torch.arange(len(tokens)), attend_alone)

    @torch.no_grad()
    def logits_alone(self, tokens):
        """[S,V]"""
        return self.head(self.states_alone(tokens))


def attend_alone(layer, q, k, v, *, window=None):
    distance = torch.arange(len(q))[:, None] - torch.arange(len(q))[None]
    mask = (distance >= 0) & (distance < (len(q) if window is None else window))
    scores = torch.einsum("qhd,kd->hqk", q, k[:, 0]) / math.sqrt(HEAD_DIM)
    return torch.einsum("hqk,kd->qhd", scores.masked_fill(~mask, -math.inf).softmax(-1), v[:, 0])


def truncated(logits, temperature=1.0, top_p=1.0, top_k=None):
    """What is sampled from, of logits [V]: a list, token by token."""
    if temperature == 0:
        return [float(token == int(logits.argmax())) for token in range(len(logits))]
    weights = [math.exp((float(x) - float(logits.max())) / temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])[:top_k]
    mass, total, kept = 0.0, sum(weights[token] for token in order), []
    for token in order:
        kept.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]
