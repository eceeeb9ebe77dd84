"""Log-probabilities of target tokens, and entropies, without a tensor of all logits.

A row of hidden states owns what it predicts (docs/design.md, log-probs).
"""

import math

import torch

from regrow import _load  # noqa: F401
from regrow.devices import same_device
from regrow.dtypes import accumulation_dtype
from regrow.logit_chunks import Targets, chunked_backward, chunked_forward
from regrow.refusals import plain_number, refuse_second_derivative

__all__ = ["RowLogprobs", "TreeLogprobs", "row_logprobs", "tree_logprobs"]

ops = torch.ops.regrow


def row_logprobs(hidden, weight, target_row, target_token, *, temperature=1.0, softcap=None):
    """Log-probability of each target token under its row, and each row's entropy (nats).

    hidden [R,H]; weight [V,H] of the same dtype (fp64, fp32, bf16, fp16); target_row, target_token [N] int64, in any
    order, rows repeated at will. Logits are `softcap * tanh(l / softcap) / temperature`.
    Returns logp [N] and entropy [R] in fp32 (fp64 for fp64), differentiable in hidden and weight.
    Raises ValueError for a row or token out of range, mismatched widths or dtypes, temperature or softcap not above 0.

        logp, entropy = regrow.row_logprobs(hidden, lm_head.weight, rows, tokens)
    """
    temperature, softcap = plain_number("temperature", temperature), plain_number("softcap", softcap)
    return ops.row_logprobs(hidden, weight, target_row, target_token, temperature, softcap)


def tree_logprobs(hidden, weight, tree, *, where=None, temperature=1.0, softcap=None, return_entropy=False):
    """Log-probability of every token of a tree under the row that predicts it, 0 at roots.

    hidden [T,H] on the tree's token axis; weight [V,H]; token t is predicted by row `tree.parent_index[t]`.
    where: boolean [T], the tokens to score (those of responses, say); the others get 0 and cost nothing.
    Returns logp [T], or (logp, entropy) with `entropy[t]` that of the row that predicts t (nats, 0 at roots), in fp32
    (fp64 for fp64), differentiable in hidden and weight. Only rows that predict something are computed.
    Raises ValueError as row_logprobs does, and for a tree without tokens, or `where` or a tree of another size.

        logp = regrow.tree_logprobs(hidden, lm_head.weight, tree, temperature=0.7)
    """
    if tree.tokens is None:
        raise ValueError("the tree has no tokens to predict: give from_nodes its tokens")
    if hidden.dim() != 2 or hidden.size(0) != tree.num_tokens:
        raise ValueError(
            f"hidden is {list(hidden.shape)}, the tree has {tree.num_tokens} tokens: give one row for each"
        )
    temperature, softcap = plain_number("temperature", temperature), plain_number("softcap", softcap)
    parent_index = tree.parent_index
    if where is not None:
        if where.dtype != torch.bool or list(where.shape) != [tree.num_tokens]:
            raise ValueError(
                f"where must be a boolean tensor of shape [{tree.num_tokens}], "
                f"got {where.dtype} of shape {list(where.shape)}"
            )
        parent_index = parent_index.masked_fill(~where, -1)  # a token without a parent is predicted by no row
    logp, entropy = ops.tree_logprobs(hidden, weight, parent_index, tree.tokens, temperature, softcap)
    return (logp, entropy) if return_entropy else logp


def _check(hidden, weight, temperature, softcap):
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.size(1) != weight.size(1):
        raise ValueError(
            "hidden must be [rows, width] and weight [vocabulary, width], "
            f"got {list(hidden.shape)} and {list(weight.shape)}"
        )
    if hidden.dtype != weight.dtype or hidden.device != weight.device:
        raise ValueError(
            f"hidden is {hidden.dtype} on {hidden.device}, weight is {weight.dtype} on {weight.device}: "
            "convert one to the other"
        )
    if hidden.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"hidden must be float64, float32, bfloat16 or float16, got {hidden.dtype}")
    largest = torch.finfo(accumulation_dtype(hidden.dtype)).max
    if not (temperature > 0 and math.isfinite(temperature) and 1 / largest < temperature < largest):
        raise ValueError(
            f"temperature is {temperature}, must be positive and finite, its inverse too in the accumulation dtype "
            "(greedy decoding has no log-probs)"
        )
    if softcap is not None and not 1 / largest < softcap < largest:
        raise ValueError(f"softcap is {softcap}, must be positive and finite in the accumulation dtype, or None")


def _check_indices(name, values, low, high, remedy, where=None):
    """Raises for the first value outside [low, high), where `where` holds."""
    outside = (values < low) | (values >= high)
    if where is not None:
        outside &= where
    if outside.any():
        place = int(outside.nonzero()[0])
        raise ValueError(f"{name}[{place}] is {int(values[place])}, {remedy}")


def _check_int64(like, size, **vectors):
    for name, vector in vectors.items():
        if vector.dtype != torch.int64 or list(vector.shape) != [size] or vector.device != like.device:
            raise ValueError(
                f"{name} must be an int64 tensor of shape [{size}] on {like.device}, "
                f"got {vector.dtype} of shape {list(vector.shape)} on {vector.device}"
            )


def _row_targets(hidden, weight, target_row, target_token, temperature, softcap):
    _check(hidden, weight, temperature, softcap)
    _check_int64(hidden, target_row.numel(), target_row=target_row, target_token=target_token)
    num_rows, vocabulary = hidden.size(0), weight.size(0)
    _check_indices("target_row", target_row, 0, num_rows, f"but hidden has {num_rows} rows")
    _check_indices("target_token", target_token, 0, vocabulary, f"outside the vocabulary of {vocabulary}")
    return Targets.sort(None, num_rows, target_row, target_token)


def _tree_targets(hidden, weight, parent_index, tokens, temperature, softcap):
    """The targets, and the axis position [N] of each in the caller's order."""
    _check(hidden, weight, temperature, softcap)
    num_tokens, vocabulary = hidden.size(0), weight.size(0)
    _check_int64(hidden, num_tokens, parent_index=parent_index, tokens=tokens)
    predicted = parent_index >= 0
    _check_indices("parent_index", parent_index, -1, num_tokens, f"beyond the {num_tokens} tokens of the axis")
    _check_indices("tokens", tokens, 0, vocabulary, f"outside the vocabulary of {vocabulary}", where=predicted)
    positions = predicted.nonzero()[:, 0]
    rows, row = torch.unique(parent_index[positions], return_inverse=True)
    return Targets.sort(rows, rows.size(0), row, tokens[positions]), positions


@torch.library.impl("regrow::row_logprobs", "default")
def _row_logprobs(hidden, weight, target_row, target_token, temperature, softcap):
    targets = _row_targets(hidden, weight, target_row, target_token, temperature, softcap)
    logp, entropy = chunked_forward(hidden, weight, targets, temperature, softcap)
    return torch.empty_like(logp).index_copy_(0, targets.order, logp), entropy


@torch.library.impl("regrow::row_logprobs_bwd", "default")
def _row_logprobs_bwd(
    dlogp, dentropy, hidden, weight, target_row, target_token, temperature, softcap, need_hidden, need_weight
):
    targets = _row_targets(hidden, weight, target_row, target_token, temperature, softcap)
    dentropy = None if dentropy is None else dentropy.contiguous()
    return chunked_backward(
        dlogp[targets.order], dentropy, hidden, weight, targets, temperature, softcap, need_hidden, need_weight
    )


@torch.library.impl("regrow::tree_logprobs", "default")
def _tree_logprobs(hidden, weight, parent_index, tokens, temperature, softcap):
    targets, positions = _tree_targets(hidden, weight, parent_index, tokens, temperature, softcap)
    logp, entropy = chunked_forward(hidden, weight, targets, temperature, softcap)
    places = positions[targets.order]
    zeros = logp.new_zeros(hidden.size(0))
    return zeros.index_copy(0, places, logp), zeros.index_copy_(0, places, entropy[targets.row])


@torch.library.impl("regrow::tree_logprobs_bwd", "default")
def _tree_logprobs_bwd(
    dlogp, dentropy, hidden, weight, parent_index, tokens, temperature, softcap, need_hidden, need_weight
):
    targets, positions = _tree_targets(hidden, weight, parent_index, tokens, temperature, softcap)
    places = positions[targets.order]
    if dentropy is not None:  # a row's entropy appears at each token that it predicts
        dentropy = ops.replay_scatter(dentropy[places], targets.row, targets.num_rows)
    dhidden, dweight = chunked_backward(
        dlogp[places], dentropy, hidden, weight, targets, temperature, softcap, need_hidden, need_weight
    )
    if need_hidden:
        dhidden = torch.zeros_like(hidden, memory_format=torch.contiguous_format).index_copy_(0, targets.rows, dhidden)
    return dhidden, dweight


def _setup_context(ctx, inputs, output):
    *tensors, ctx.temperature, ctx.softcap = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _apply_backward(op, ctx, dlogp, dentropy):
    if dlogp is None and dentropy is None:
        return None, None, None, None, None, None
    need_hidden, need_weight = ctx.needs_input_grad[:2]
    saved = ctx.saved_tensors  # read once: gradient checkpointing forbids more
    if dlogp is None:
        dlogp = dentropy.new_zeros(saved[3].size(0))
    dhidden, dweight = op(dlogp, dentropy, *saved, ctx.temperature, ctx.softcap, need_hidden, need_weight)
    return dhidden if need_hidden else None, dweight if need_weight else None, None, None, None, None


class RowLogprobs(torch.autograd.Function):
    """`RowLogprobs.apply(hidden, weight, target_row, target_token, temperature, softcap)` -> logp, entropy."""

    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(hidden, weight, target_row, target_token, temperature, softcap):
        return ops.row_logprobs(hidden, weight, target_row, target_token, temperature, softcap)

    @staticmethod
    def backward(ctx, dlogp, dentropy):
        return _apply_backward(ops.row_logprobs_bwd, ctx, dlogp, dentropy)


class TreeLogprobs(torch.autograd.Function):
    """`TreeLogprobs.apply(hidden, weight, parent_index, tokens, temperature, softcap)` -> logp, entropy."""

    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(hidden, weight, parent_index, tokens, temperature, softcap):
        return ops.tree_logprobs(hidden, weight, parent_index, tokens, temperature, softcap)

    @staticmethod
    def backward(ctx, dlogp, dentropy):
        return _apply_backward(ops.tree_logprobs_bwd, ctx, dlogp, dentropy)


torch.library.register_autograd("regrow::row_logprobs", RowLogprobs.backward, setup_context=_setup_context)
torch.library.register_autograd("regrow::tree_logprobs", TreeLogprobs.backward, setup_context=_setup_context)


@torch.library.register_fake("regrow::row_logprobs")
def _(hidden, weight, target_row, target_token, temperature, softcap):
    same_device(hidden=hidden, weight=weight, target_row=target_row, target_token=target_token)
    dtype = accumulation_dtype(hidden.dtype)
    return hidden.new_empty(target_row.size(0), dtype=dtype), hidden.new_empty(hidden.size(0), dtype=dtype)


@torch.library.register_fake("regrow::tree_logprobs")
def _(hidden, weight, parent_index, tokens, temperature, softcap):
    same_device(hidden=hidden, weight=weight, parent_index=parent_index, tokens=tokens)
    dtype = accumulation_dtype(hidden.dtype)
    return hidden.new_empty(hidden.size(0), dtype=dtype), hidden.new_empty(hidden.size(0), dtype=dtype)


def _fake_gradients(hidden, weight, temperature, softcap, need_hidden, need_weight):
    return hidden.new_empty(hidden.shape if need_hidden else 0), hidden.new_empty(weight.shape if need_weight else 0)


@torch.library.register_fake("regrow::row_logprobs_bwd")
def _(dlogp, dentropy, hidden, weight, target_row, target_token, *options):
    same_device(
        dlogp=dlogp, dentropy=dentropy, hidden=hidden, weight=weight, target_row=target_row, target_token=target_token
    )
    return _fake_gradients(hidden, weight, *options)


@torch.library.register_fake("regrow::tree_logprobs_bwd")
def _(dlogp, dentropy, hidden, weight, parent_index, tokens, *options):
    same_device(dlogp=dlogp, dentropy=dentropy, hidden=hidden, weight=weight, parent_index=parent_index, tokens=tokens)
    return _fake_gradients(hidden, weight, *options)


@torch.library.register_fake("regrow::logits_row_stats")
def _(logits, temperature, softcap):
    size = logits.size(0)
    return (
        logits.new_empty(size, dtype=torch.float64),
        logits.new_empty(size, dtype=accumulation_dtype(logits.dtype)),
    )


@torch.library.register_fake("regrow::logits_pick")
def _(logits, lse, target_row, target_token, temperature, softcap):
    same_device(logits=logits, lse=lse, target_row=target_row, target_token=target_token)
    return logits.new_empty(target_row.size(0), dtype=accumulation_dtype(logits.dtype))


@torch.library.register_fake("regrow::logits_row_grad_")
def _(logits, lse, entropy, row_start, target_token, dlogp, dentropy, temperature, softcap):
    same_device(
        logits=logits, lse=lse, entropy=entropy, row_start=row_start, target_token=target_token, dlogp=dlogp,
        dentropy=dentropy,
    )  # fmt: skip


refuse_second_derivative("regrow::row_logprobs_bwd", "row_logprobs")
refuse_second_derivative("regrow::tree_logprobs_bwd", "tree_logprobs")
