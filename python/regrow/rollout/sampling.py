"""What a step samples from, and with what: temperature and truncation, counter-based randomness, inverse-CDF draws."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import torch

# Streams of `uniform`: what decides tokens of the target, and what draws the drafts of a drafter, are independent.
TARGET_STREAM = 0
DRAFT_STREAM = 1

_SMALLEST_TEMPERATURE = 1e-30  # dividing by less than what fp32 holds would give nan
_LARGEST_TEMPERATURE = 1e30
_NUCLEUS_WIDTH = 256  # tokens that are sorted first
_BLOCK = 256  # tokens that are summed before a draw looks into one block
_WORD = 1 << 32
# Multipliers and Weyl constants of Philox4x32: Random123, philox.h.
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True)
class Sampling:
    """How logits become the distribution that is sampled from: temperature, then top-k, then top-p.

    temperature: 0 is greedy, the first of the largest logits. top_k: how many tokens may be drawn, None for all.
    top_p: the smallest set of most probable tokens whose mass reaches it may be drawn, at least one; 1 for all.
    Ties are broken by token id, the lower first, so exactly `top_k` tokens stay where transformers keeps all that tie.

    Raises ValueError for a temperature that is negative, not finite, or not 0 and outside [1e-30, 1e30], a top_k that
    is not an int of at least 1 and a top_p outside (0, 1].

    >>> Sampling(temperature=0.7, top_p=0.9)
    Sampling(temperature=0.7, top_p=0.9, top_k=None)
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self):
        for name in ("temperature", "top_p"):
            if not isinstance(getattr(self, name), Real):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give a number")
        if self.temperature != 0 and not _SMALLEST_TEMPERATURE <= self.temperature <= _LARGEST_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}, must be 0 (greedy) or from {_SMALLEST_TEMPERATURE} to "
                f"{_LARGEST_TEMPERATURE}: pass 1 for the model's own distribution"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, must be in (0, 1]: pass 1 to keep every token")
        if self.top_k is not None and not (
            isinstance(self.top_k, Integral) and not isinstance(self.top_k, bool) and self.top_k >= 1
        ):
            raise ValueError(f"top_k is {self.top_k!r}, must be an int of at least 1: pass None to keep every token")


def target_probabilities(logits, sampling, out=None):
    """The distribution of the next token: logits [R, V], a `Sampling` -> probabilities [R, V].

    fp64 for fp64 logits, else fp32. A logit of -inf forbids its token. A row does not depend on the others. out: where
    they are written, at will: of a large vocabulary, fresh memory costs as much as the work.
    Top-p: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020.

    Raises ValueError for logits that are not [R, V], and for a row whose largest logit is not finite.

    >>> target_probabilities(torch.tensor([[0.0, 3.0, 3.0]]), Sampling(temperature=0))
    tensor([[0., 1., 0.]])
    """
    if logits.dim() != 2 or logits.size(1) == 0:
        raise ValueError(f"logits are {list(logits.shape)}, must be [R, V]: one row per token to sample")
    if logits.dtype != torch.float64:
        logits = logits.float()
    if len(logits) == 0:
        return logits
    largest = logits.amax(-1, keepdim=True)
    _check_largest(largest)
    if sampling.temperature == 0:
        out = torch.zeros_like(logits) if out is None else out.zero_()
        return out.scatter_(1, logits.argmax(-1, keepdim=True), 1)

    if sampling.top_k is not None and sampling.top_k < logits.size(1):
        last = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(~_leading(logits, last, sampling.top_k), -math.inf)
    out = torch.empty_like(logits) if out is None else out
    if sampling.temperature != 1:
        # The largest becomes 0, so no temperature overflows.
        logits = (logits - largest).div_(sampling.temperature)
    probabilities = torch.softmax(logits, -1, out=out)
    if sampling.top_p < 1:
        probabilities.masked_fill_(~_nucleus(logits, probabilities, sampling.top_p), 0)
        probabilities /= probabilities.sum(-1, keepdim=True)
    return probabilities


def sampling_logprobs(logits, sampling):
    """The logarithm of `target_probabilities`, [R, V]: -inf for tokens that cannot be drawn."""
    return target_probabilities(logits, sampling).log()


def _check_largest(largest):
    bad = (~largest.isfinite()).flatten().nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"the largest logit of row {row} is {float(largest[row])}, must be finite: "
            "look for nan in the model's weights, and leave each row a token that may be drawn"
        )


def _leading(logits, last, sizes):
    """bool [R, V]: the `sizes` tokens of each row with the largest logits, `last` the least; of ties, the first."""
    above, ties = logits > last, logits == last
    room = sizes - above.sum(-1, keepdim=True)
    if (ties.sum(-1, keepdim=True) == room).all():
        return above | ties
    return above | (ties & (ties.cumsum(-1, dtype=torch.int32) <= room))


def _nucleus(logits, probabilities, top_p):
    """bool [R, V]: the most probable tokens that reach `top_p`; all where rounding keeps their sum below.

    A nucleus is mostly small, so the largest few are looked at first: sorting a vocabulary costs ten times as much.
    """
    num_tokens = logits.size(1)
    width = min(num_tokens, _NUCLEUS_WIDTH)
    while True:
        leading, tokens = logits.topk(width, -1)
        mass = probabilities.gather(1, tokens).double().cumsum(-1)
        if width == num_tokens or (mass[:, -1] >= top_p).all():
            sizes = ((mass < top_p).sum(-1, keepdim=True) + 1).clamp(max=width)
            return _leading(logits, leading.gather(1, sizes - 1), sizes)
        width = min(num_tokens, 8 * width)


def draw(probabilities, uniforms):
    """A token of each row by the inverse CDF: probabilities [R, V], uniforms [R] in [0, 1) -> int64 [R].

    Rows need not sum to 1: they are weights. A token of probability 0 is never drawn, however sums round.

    Raises ValueError for shapes that do not fit, uniforms outside [0, 1), and a row without a positive, finite sum.

    >>> draw(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([0.5]))
    tensor([2])
    """
    if probabilities.dim() != 2 or probabilities.size(1) == 0 or uniforms.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities are {list(probabilities.shape)} and uniforms {list(uniforms.shape)}, "
            "must be [R, V] and [R]: one uniform per row"
        )
    inside = (uniforms >= 0) & (uniforms < 1)
    if not inside.all():
        raise ValueError(f"a uniform is {float(uniforms[~inside][0])}, must be in [0, 1): see `uniform`")
    uniforms = uniforms.to(torch.float64)[:, None]
    if probabilities.size(1) <= _BLOCK:
        return _first_above(uniforms, _shares(probabilities.double())).squeeze(1)

    # A running sum over blocks, then over one of them, is many times cheaper than over the vocabulary.
    blocks = _shares(_block_sums(probabilities))
    block = _first_above(uniforms, blocks)
    start = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0)
    uniforms = ((uniforms - start) / (blocks.gather(1, block) - start)).clamp(max=1 - 2**-53)  # within the block
    tokens = block * _BLOCK + torch.arange(_BLOCK, device=block.device)
    beyond = tokens >= probabilities.size(1)
    weights = probabilities.gather(1, tokens.masked_fill(beyond, 0)).double().masked_fill_(beyond, 0)
    return (block * _BLOCK + _first_above(uniforms, _shares(weights))).squeeze(1)


def _block_sums(probabilities):
    whole = probabilities.size(1) // _BLOCK * _BLOCK
    # Sums of fp32 in fp32 round as their terms did; in fp64 torch would first copy all of them.
    blocks = probabilities[:, :whole].unflatten(1, (whole // _BLOCK, _BLOCK)).sum(-1)
    rest = probabilities[:, whole:].sum(-1, keepdim=True)
    return torch.cat([blocks, rest], 1).double()


def _shares(weights):
    """The running sum of each row over its last."""
    cumulative = weights.cumsum(-1)
    mass = cumulative[:, -1:]
    drawable = (mass > 0) & (mass < math.inf)
    if not drawable.all():
        row = int((~drawable).nonzero()[0, 0])
        raise ValueError(
            f"the probabilities of row {row} sum to {float(mass[row])}, must be positive and finite: "
            "leave each row a token that may be drawn"
        )
    return cumulative / mass


def _first_above(uniforms, shares):
    """int64 [R, 1]: where a positive weight was added. There is one: the last share is 1, above every uniform."""
    return torch.searchsorted(shares, uniforms, right=True)


def draw_without_replacement(probabilities, uniforms):
    """Different tokens of each row, one after the other: [R, V], uniforms [R, width] -> int64 [R, width].

    Each is drawn from the probabilities of those not drawn yet, as `verify` wants the children of a node. -1 where
    fewer tokens than `width` have a positive probability.

    >>> draw_without_replacement(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([[0.5, 0.9, 0.1]]))
    tensor([[ 2,  0, -1]])
    """
    left = probabilities.double().clone()
    drawn = torch.full(uniforms.shape, -1, device=left.device)
    for column in range(uniforms.size(1)):
        rows = (left.sum(-1) > 0).nonzero().flatten()
        tokens = draw(left[rows], uniforms[rows, column])
        drawn[rows, column] = tokens
        left[rows, tokens] = 0
    return drawn


def uniform(seed, sequence, position, draws, stream=TARGET_STREAM):
    """Random numbers that depend on nothing but where they are used: -> fp64 [..., draws] in [0, 1), on the CPU.

    seed: an int of 64 bits. sequence, position: ints or int64 tensors that broadcast to [...], below 2^32. Number i of
    (seed, sequence, position, stream) is the same whatever `draws` and the other rows are: 53 bits of Philox4x32-10
    with the seed as its key and (i // 2, position, sequence, stream) as its counter (Salmon et al., Parallel Random
    Numbers: As Easy as 1, 2, 3, 2011).

    Raises ValueError for what is negative or too large.

    >>> bool((uniform(0, 3, 5, draws=2) == uniform(0, torch.tensor([7, 3]), 5, draws=4)[1, :2]).all())
    True
    """
    if not 0 <= seed < _WORD**2:
        raise ValueError(f"seed is {seed}, must be from 0 to 2^64 - 1: pass it modulo 2^64")
    if draws < 0:
        raise ValueError(f"draws is {draws}, must not be negative")
    sequence, position, stream = (
        _counter_word(name, value)
        for name, value in (("sequence", sequence), ("position", position), ("stream", stream))
    )
    blocks = np.arange((draws + 1) // 2, dtype=np.uint64)
    words = (blocks, position[..., None], sequence[..., None], stream[..., None])
    counter = np.stack(np.broadcast_arrays(*words), -1)
    bits = philox(counter, (seed % _WORD, seed // _WORD))
    high, low = bits[..., 0::2] >> np.uint64(5), bits[..., 1::2] >> np.uint64(6)
    numbers = ((high << np.uint64(26)) | low).astype(np.float64) * 2.0**-53  # [..., blocks, 2]
    return torch.from_numpy(numbers.reshape(*numbers.shape[:-2], -1)[..., :draws])


def philox(counter, key):
    """Philox4x32-10: counters uint64 [..., 4] and a key of two ints, all of 32 bits -> uint64 [..., 4] of 32 bits."""
    mask, half = np.uint64(_WORD - 1), np.uint64(32)
    c0, c1, c2, c3 = (counter[..., word] for word in range(4))
    for round_ in range(10):
        k0, k1 = (np.uint64((word + round_ * step) % _WORD) for word, step in zip(key, _WEYL, strict=True))
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> half) ^ c1 ^ k0, product1 & mask
        c2, c3 = (product0 >> half) ^ c3 ^ k1, product0 & mask
    return np.stack((c0, c1, c2, c3), -1)


def _counter_word(name, value):
    array = np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
    if array.size and not 0 <= array.min() <= array.max() < _WORD:
        wrong = array.min() if array.min() < 0 else array.max()
        raise ValueError(f"{name} is {wrong}, must be from 0 to 2^32 - 1: it is a word of the counter")
    return array.astype(np.uint64)
