"""Random batches for objectives, and the value and the gradients of an objective on one."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import strategies as st

from regrow import PrefixTree


@dataclass
class Batch:
    """Sequences with random data, as lists of one tensor per sequence; log-probs and entropies [T] on their tree."""

    sequences: list
    tree: PrefixTree
    mask: list
    old: list
    reference: list
    advantages: torch.Tensor  # [num_sequences]
    token_advantages: list
    weights: list
    logprobs: torch.Tensor
    entropy: torch.Tensor


def make_batch(sequences, seed=0, spread=0.6):
    """Responses start anywhere, in shared nodes too, have holes, and may be empty; old log-probs differ by `spread`.

    All data at tokens outside the response are NaN: nothing may read them.
    """
    generator = torch.Generator().manual_seed(seed)
    tree = PrefixTree.from_sequences(sequences)
    logprobs = -3 * torch.rand(tree.num_tokens, dtype=torch.float64, generator=generator)
    entropy = torch.rand(tree.num_tokens, dtype=torch.float64, generator=generator)
    mask = []
    for sequence in sequences:
        start = int(torch.randint(1, len(sequence) + 1, (), generator=generator))
        own = torch.rand(len(sequence), generator=generator) < 0.8
        own[:start] = False
        mask.append(own)
    bounds = tree.cu_seqlens.tolist()
    axis = [tree.gather_index[first:last] for first, last in pairwise(bounds)]

    def around(centre, scale):
        values = []
        for own, places in zip(mask, axis, strict=True):
            noise = scale * torch.randn(len(own), dtype=torch.float64, generator=generator)
            middle = centre[places] if centre is not None else 0.0
            values.append((middle + noise).masked_fill(~own, torch.nan))
        return values

    return Batch(
        sequences=sequences,
        tree=tree,
        mask=mask,
        old=around(logprobs, spread),
        reference=around(logprobs, 0.5),
        advantages=torch.randn(len(sequences), dtype=torch.float64, generator=generator),
        token_advantages=around(None, 1.0),
        weights=around(None, 1.0),
        logprobs=logprobs,
        entropy=entropy,
    )


# A few tokens, so that random sequences share beginnings, repeat, and begin one another.
RANDOM_SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=7)


def derivatives(loss, *inputs):
    """The value and, for each input, the gradient, 0 where it does not matter."""
    if not loss.requires_grad:
        return [loss, *map(torch.zeros_like, inputs)]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        loss.detach(),
        *(torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, gradients, strict=True)),
    ]


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def leaves(batch):
    return batch.logprobs.clone().requires_grad_(), batch.entropy.clone().requires_grad_()


def of_objective(objective, batch):
    logprobs, entropy = leaves(batch)
    return derivatives(objective(logprobs, batch.tree, entropy), logprobs, entropy)
