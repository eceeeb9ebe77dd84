"""Attention over a prefix tree: the public functions, their autograd formulas, and what torch.compile must know."""

import torch

from regrow.devices import same_device
from regrow.dtypes import accumulation_dtype
from regrow.plans import cached_plan, check_places, check_plan, check_window
from regrow.plans import plan as make_plan
from regrow.refusals import plain_number, refuse_second_derivative

_ops = torch.ops.regrow
_ARGUMENTS = tuple(argument.name for argument in _ops.tree_attention_fwd.default._schema.arguments)
_NUM_ARGUMENTS = len(_ARGUMENTS)


class TreeAttention(torch.autograd.Function):
    """`torch.ops.regrow.tree_attention_fwd` with gradients for q, k, v and sinks.

    `apply` takes the op's arguments in order and returns (out, lse). Both results are differentiable: the gradient of
    lse enters through delta, so merged results stay differentiable.
    """

    @staticmethod
    def forward(*arguments):
        with torch._C._AutoDispatchBelowAutograd():
            return _ops.tree_attention_fwd(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, subtree_end, position_ids, plan, query_index, *options, sinks, _partial = inputs
        ctx.options = options  # query_start, key_start, scale, window, softcap
        ctx.save_for_backward(q, k, v, *output, subtree_end, position_ids, plan, query_index, sinks)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dout, dlse):
        if dout is None and dlse is None:
            return (None,) * _NUM_ARGUMENTS
        arguments = _backward_arguments(ctx, dout, dlse)
        dq, dk, dv, dsinks = _ops.tree_attention_bwd(*arguments)
        return _gradients(arguments, dq, dk, dv, dsinks)


def _backward_arguments(ctx, dout, dlse):
    """What both backward ops start with, in the order of their schema; under gradient checkpointing the context's saved
    tensors may be read this once."""
    q, k, v, out, lse, subtree_end, position_ids, plan, query_index, sinks = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    return dout, dlse, q, k, v, out, lse, subtree_end, position_ids, plan, query_index, *ctx.options, sinks


def _gradients(arguments, dq, dk, dv, dsinks):
    """One for each argument of tree_attention_fwd."""
    sinks = arguments[-1]
    gradients = dict(q=dq, k=dk, v=dv, sinks=None if sinks is None else dsinks)
    return tuple(gradients.get(name) for name in _ARGUMENTS)


class _TreeAttentionInto(torch.autograd.Function):
    """TreeAttention whose backward adds dK and dV into the caller's buffers and returns none for k and v."""

    @staticmethod
    def forward(ctx, dk_accum, dv_accum, *arguments):
        output = _ops.tree_attention_fwd(*arguments)
        TreeAttention.setup_context(ctx, arguments, output)
        ctx.accumulators = dk_accum, dv_accum  # the caller's: written in backward, so not saved tensors
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        if dout is None and dlse is None:
            return (None,) * (2 + _NUM_ARGUMENTS)
        arguments = _backward_arguments(ctx, dout, dlse)
        q = arguments[2]
        dq = torch.zeros_like(q, dtype=accumulation_dtype(q.dtype), memory_format=torch.contiguous_format)
        dsinks = _ops.tree_attention_bwd_accum(*arguments, dq, *ctx.accumulators)
        torch.autograd.graph.increment_version(ctx.accumulators)
        return None, None, *_gradients(arguments, dq.to(q.dtype), None, None, dsinks)


def tree_attention(
    q, k, v, tree, *, scale=None, window=None, softcap=None, sinks=None, query_start=0, query_index=None, key_start=0,
    dk_accum=None, dv_accum=None, return_lse=False, plan=None, partial=False,
):  # fmt: skip
    """Causal attention along every root-to-leaf path of a prefix tree, for one rectangle of queries x keys.

    q [Tq,Hq,D], k [Tk,Hkv,D], v [Tk,Hkv,Dv]: float64, float32, bfloat16 or float16 (on CUDA the last two), any strides
    with a contiguous last dimension; Hq a multiple of Hkv; D and Dv multiples of 8 up to 256. Query i is the token at
    `query_start + i`, or `query_index[i]` (int64, sorted), key j the one at `key_start + j`. `scale`: D**-0.5 by
    default. `window`: positions that a query looks back, itself included. `softcap`: scores become
    softcap * tanh(scores / softcap). `sinks` [Hq]: the score of one more key of value zero. `plan`: from regrow.plan;
    by default the tree's own.

    Returns out [Tq,Hq,Dv] in q's dtype, and with `return_lse` lse [Hq,Tq] (natural log; float32, float64 for float64).
    A query that sees no key has out 0 and lse -inf (or the sink). `partial=True` is for keys that are only a part: out
    is float32 (float64), lse is always returned, sinks are refused; regrow.lse_merge joins the parts.

    `dk_accum` [Tk,Hkv,D] and `dv_accum` [Tk,Hkv,Dv], both or neither, float32 (float64): backward adds the gradients of
    k and v there, and those of k and v themselves are then None.

    Raises ValueError for shapes, dtypes, devices or options that do not fit, and RuntimeError under torch.compile or
    graph capture where no plan exists yet.

        tree = regrow.PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])
        out = regrow.tree_attention(q, k, v, tree)  # q [5, Hq, D]
    """
    if not all(isinstance(t, torch.Tensor) for t in (q, k, v)):
        raise ValueError(f"q, k and v must be tensors, got {', '.join(type(t).__name__ for t in (q, k, v))}")
    same_device(
        q=q, k=k, v=v, tree=tree.subtree_end, plan=plan, query_index=query_index, sinks=sinks, dk_accum=dk_accum,
        dv_accum=dv_accum,
    )  # fmt: skip
    if q.dim() != 3 or k.dim() != 3 or v.dim() != 3:
        raise ValueError(f"q, k and v must be [rows, heads, dim], got shapes {[list(t.shape) for t in (q, k, v)]}")
    if (dk_accum is None) != (dv_accum is None):
        raise ValueError("dk_accum and dv_accum go together: pass both or neither")
    if partial and sinks is not None:
        raise ValueError("a partial result leaves the sinks out: pass them to regrow.lse_merge")
    check_places(query_index, query_start)
    check_window(window)
    if plan is None:
        plan = _find_plan(tree, q, k, v, window, query_start, query_index, key_start)
    elif not torch.compiler.is_compiling():
        check_plan(plan, tree)
    if sinks is not None:
        sinks = sinks.to(accumulation_dtype(q.dtype))
    arguments = (
        q, k, v, tree.subtree_end, tree.position_ids, plan, query_index, query_start, key_start,
        q.size(-1) ** -0.5 if scale is None else plain_number("scale", scale), window, plain_number("softcap", softcap),
        sinks, partial,
    )  # fmt: skip
    if dk_accum is None:
        out, lse = _ops.tree_attention_fwd(*arguments)
    else:
        _check_accumulators(q, k, v, dk_accum, dv_accum)
        out, lse = _TreeAttentionInto.apply(dk_accum, dv_accum, *arguments)
    return (out, lse) if return_lse or partial else out


def _find_plan(tree, q, k, v, window, query_start, query_index, key_start):
    rectangle = dict(
        query_heads=q.size(1),
        kv_heads=k.size(1),
        head_dim=max(q.size(2), v.size(2)),
        window=window,
        query_start=query_start,
        key_start=key_start,
    )
    compiling = torch.compiler.is_compiling()
    if compiling or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
        found = None
        if query_index is None:
            found = cached_plan(tree, num_queries=q.size(0), num_keys=k.size(0), **rectangle)
        if found is None:
            where = "torch.compile" if compiling else "graph capture"
            raise RuntimeError(f"no plan for this call, and none can be made under {where}: call regrow.plan first")
        return found
    num_queries = q.size(0) if query_index is None else None
    return make_plan(tree, num_queries=num_queries, num_keys=k.size(0), query_index=query_index, **rectangle)


def _check_accumulators(q, k, v, dk_accum, dv_accum):
    dtype = accumulation_dtype(q.dtype)
    for name, accumulator, like in (("dk_accum", dk_accum, k), ("dv_accum", dv_accum, v)):
        if accumulator.shape != like.shape or accumulator.dtype != dtype or not accumulator.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} of shape {list(like.shape)}, got "
                f"{accumulator.dtype} of shape {list(accumulator.shape)}"
            )
        if accumulator.requires_grad:
            raise ValueError(f"{name} is a buffer that backward adds into: it must not require a gradient")


class LseMerge(torch.autograd.Function):
    """`torch.ops.regrow.lse_merge` with gradients for outs, lses and sinks."""

    @staticmethod
    def forward(outs, lses, sinks):
        with torch._C._AutoDispatchBelowAutograd():
            return _ops.lse_merge(outs, lses, sinks)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dout, dlse):
        outs, lses, sinks, out, lse = ctx.saved_tensors
        if dout is None and dlse is None:
            return None, None, None
        if dout is None:
            dout = torch.zeros_like(out)
        douts, dlses, dsinks = _ops.lse_merge_bwd(dout, dlse, outs, lses, sinks, out, lse)
        return douts, dlses, dsinks if sinks is not None else None


def lse_merge(outs, lses, sinks=None):
    """Joins partial attention results over disjoint key sets, in a fixed order.

    outs [P,Tq,Hq,Dv] and lses [P,Hq,Tq] (natural log), both float32 or both float64; sinks [Hq] counts once. Returns
    out [Tq,Hq,Dv] and lse [Hq,Tq] of the union, differentiable in all three. A part that saw no key (lse -inf) has no
    weight, whatever its out. The mergeable state is that of online softmax (Milakov and Gimelshein, 2018).

    Raises ValueError for shapes, dtypes or devices that do not fit.

        parts = [regrow.tree_attention(q, k[a:b], v[a:b], tree, key_start=a, partial=True) for a, b in blocks]
        out, lse = regrow.lse_merge(torch.stack([o for o, _ in parts]), torch.stack([l for _, l in parts]))
    """
    same_device(outs=outs, lses=lses, sinks=sinks)
    if sinks is not None:
        sinks = sinks.to(outs.dtype)
    return _ops.lse_merge(outs, lses, sinks)


def _check_devices(op, arguments):
    names = (argument.name for argument in op.default._schema.arguments)
    named = zip(names, arguments, strict=True)
    same_device(**{name: value for name, value in named if isinstance(value, torch.Tensor)})


@torch.library.register_fake("regrow::tree_attention_fwd")
def _(*arguments):
    _check_devices(_ops.tree_attention_fwd, arguments)
    q, _, v, *_, partial = arguments
    wide = accumulation_dtype(q.dtype)
    out = q.new_empty((q.size(0), q.size(1), v.size(2)), dtype=wide if partial else q.dtype)
    return out, q.new_empty((q.size(1), q.size(0)), dtype=wide)


@torch.library.register_fake("regrow::tree_attention_bwd")
def _(*arguments):
    _check_devices(_ops.tree_attention_bwd, arguments)
    _, _, q, k, v, _, lse, *_, sinks = arguments
    gradients = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
    return *gradients, lse.new_empty(0 if sinks is None else q.size(1))


@torch.library.register_fake("regrow::tree_attention_bwd_accum")
def _(*arguments):
    _check_devices(_ops.tree_attention_bwd_accum, arguments)
    _, _, q, _, _, _, lse, *_, sinks, _, _, _ = arguments
    return lse.new_empty(0 if sinks is None else q.size(1))


@torch.library.register_fake("regrow::lse_merge")
def _(outs, lses, sinks):
    same_device(outs=outs, lses=lses, sinks=sinks)
    return outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])


@torch.library.register_fake("regrow::lse_merge_bwd")
def _(dout, dlse, outs, lses, sinks, out, lse):
    same_device(dout=dout, dlse=dlse, outs=outs, lses=lses, sinks=sinks, out=out, lse=lse)
    like = torch.contiguous_format
    return (
        torch.empty_like(outs, memory_format=like),
        torch.empty_like(lses, memory_format=like),
        outs.new_empty(0 if sinks is None else outs.size(2)),
    )


torch.library.register_autograd(
    "regrow::tree_attention_fwd", TreeAttention.backward, setup_context=TreeAttention.setup_context
)
torch.library.register_autograd("regrow::lse_merge", LseMerge.backward, setup_context=LseMerge.setup_context)
refuse_second_derivative("regrow::tree_attention_bwd", "tree_attention")
refuse_second_derivative("regrow::lse_merge_bwd", "lse_merge")
