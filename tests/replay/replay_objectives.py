"""Objectives for a packed tree and for its sequences alone: both see log-probs and entropies [sequences end to end]."""

import torch


class Additive:
    """A sum over tokens that is linear in neither log-prob nor entropy; a shared token counts for each sequence."""

    def __init__(self, tree, seed=2):
        generator = torch.Generator().manual_seed(seed)
        shape = tree.gather_index.size(0)
        self.by_logp, self.by_entropy = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in "ab")
        self.packed = [tree.pack(weight, "sum") for weight in (self.by_logp, self.by_entropy)]

    @staticmethod
    def terms(by_logp, by_entropy, logp, entropy):
        return (by_logp.to(logp) * torch.expm1(0.2 * logp) + by_entropy.to(logp) * entropy.square()).sum()

    def of_sequences(self, logp, entropy, tree):
        return self.terms(self.by_logp, self.by_entropy, logp, entropy)

    def __call__(self, logp, tree, entropy):
        return self.terms(*self.packed, logp, entropy)

    def on_tokens(self, logp, tree, entropy, index):
        return self.terms(*(weight[index] for weight in self.packed), logp, entropy)


class Coupled:
    """No sum over tokens: every sequence's mean log-prob meets every other's mean entropy."""

    def __init__(self, tree):
        self.lengths = tree.cu_seqlens.diff().tolist()
        size = len(self.lengths), len(self.lengths)
        self.weights = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def of_sequences(self, logp, entropy, tree):
        means = [torch.stack([part.mean() for part in x.split(self.lengths)]) for x in (logp, entropy)]
        return torch.tanh(means[0]) @ self.weights.to(logp) @ means[1].exp()

    def __call__(self, logp, tree, entropy):
        return self.of_sequences(tree.unpack(logp), tree.unpack(entropy), tree)
