"""One run of a segment: the small tree that it and its path are, and attention on it."""

from dataclasses import dataclass, field

import torch

import regrow
from regrow.dtypes import accumulation_dtype

_ops = torch.ops.regrow


@dataclass(eq=False)
class LocalAxis:
    """A path and the segment at its end as a small tree of their own: what plans and kernels read.

    subtree_end int32 and position_ids int64 [path + segment]; the host copies are the same tensors on the CPU.
    """

    subtree_end: torch.Tensor
    position_ids: torch.Tensor
    host_subtree_end: torch.Tensor
    host_position_ids: torch.Tensor
    plans: dict = field(default_factory=dict)

    @property
    def num_tokens(self):
        return self.host_subtree_end.size(0)

    @classmethod
    def of(cls, tree, segment):
        """The axis of a segment of `tree`. A path token's slot is its position id; behind them are its own."""
        rows, size = slice(segment.begin, segment.end), segment.depth + segment.size
        ends = torch.full((size,), size, dtype=torch.int32, device="cpu")  # whatever the default device is
        shift = segment.depth - segment.begin
        torch.clamp(tree.host_subtree_end[rows] + shift, max=size, out=ends[segment.depth :])
        positions = torch.cat([torch.arange(segment.depth, device="cpu"), tree.host_position_ids[rows]])
        device = tree.subtree_end.device
        return cls(ends.to(device), positions.to(device), ends, positions)


class Run:
    """One run of a segment: what a model is given in place of a tree.

    tokens, position_ids: int64 [S] on the tree's device, the segment's own; layers call `attend`.
    """

    def __init__(self, path, tree, segment, *, repeated=False):
        """repeated: whether the segment's keys and values are on the path already, from its first run."""
        self.path, self.segment, self.repeated = path, segment, repeated
        self.axis = LocalAxis.of(tree, segment)
        rows = slice(segment.begin, segment.end)
        self.tokens = tree.tokens[rows]
        self.position_ids = tree.position_ids[rows]
        self.host_position_ids = tree.host_position_ids[rows]
        self.subtree_end = self.axis.subtree_end[segment.depth :]
        self.written, self.consumed = set(), set()
        self.finished = False  # whether the model has returned; checkpoints compute layers again after that

    @property
    def num_tokens(self):
        return self.segment.size

    def attend(self, layer, q, k, v, *, scale=None, window=None, softcap=None, sinks=None):
        """Attention of the segment's tokens to their path and among themselves; writes their keys and values behind it.

        layer: any hashable that tells this layer from the model's others. q [S,Hq,D], k [S,Hkv,D], v [S,Hkv,Dv];
        options as in `regrow.tree_attention`. Returns out [S,Hq,Dv], differentiable in q, k, v and sinks.
        Raises ValueError for other rows, and RuntimeError for a layer that is not the same in every run.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dim() != 3 or x.size(0) != self.num_tokens:
                raise ValueError(
                    f"{name} has shape {list(x.shape)}, the segment has {self.num_tokens} tokens: give all of them, "
                    f"[{self.num_tokens}, heads, dim]"
                )
        if sinks is not None:
            sinks = sinks.to(accumulation_dtype(q.dtype))
        if self.path.exact and torch.is_grad_enabled():
            self.check_alike(layer, k.requires_grad or v.requires_grad)
        scale = q.size(-1) ** -0.5 if scale is None else float(scale)
        softcap = None if softcap is None else float(softcap)
        return SegmentAttention.apply(self, layer, q, k, v, sinks, scale, window, softcap)

    def check_alike(self, layer, trained):
        """Raises RuntimeError if the layer's keys need a gradient here and did not elsewhere, or the reverse.

        A segment whose own do not need one has no backward, and would give none to those of its path.
        """
        if self.path.trained.setdefault(layer, trained) != trained:
            raise RuntimeError(
                f"the keys of {describe(layer)} depend on trained parameters in some segments and in others not, "
                "as behind an expert that not all tokens take, and gradients would be lost: let what enters the "
                "layers require a gradient (model.enable_input_require_grads())"
            )

    def write(self, layer, k, v):
        """Puts the keys and values into their slots, or compares them with what is there from an earlier run."""
        if layer in self.written and not self.finished:
            raise RuntimeError(
                f"{describe(layer)} attended twice in one run, and its second keys would be taken for its first: give "
                "each call its own key in attend(layer, ...)"
            )
        slots, own = self.path.slots(layer, k, v), self.own
        if self.repeated or layer in self.written:  # written: by the forward that a checkpoint computes again
            self.path.repeats.compare(k, slots.keys[own])
            self.path.repeats.compare(v, slots.values[own])
        else:
            slots.keys[own] = k.detach()
            slots.values[own] = v.detach()
        self.written.add(layer)
        return slots

    def finish(self):
        """Called once the model has returned. Raises RuntimeError for layers that left their slots as they were."""
        self.finished = True
        left = self.path.layers.keys() - self.written
        if left:
            raise RuntimeError(
                f"{len(left)} layers did not attend for tokens {self.segment.begin} to {self.segment.end}, "
                f"{describe(next(iter(left)))} among them: all layers must run in every segment"
            )

    @property
    def own(self):
        return slice(self.segment.depth, self.segment.depth + self.segment.size)

    def rectangle(self, q, k, v, window, begin, end):
        """The op's arguments for the segment's queries and the keys in slots [begin, end)."""
        plan = regrow.plan(
            self.axis, query_heads=q.size(1), kv_heads=k.size(1), head_dim=max(q.size(2), v.size(2)), window=window,
            query_start=self.segment.depth, num_queries=q.size(0), key_start=begin, num_keys=end - begin,
        )  # fmt: skip
        return self.axis.subtree_end, self.axis.position_ids, plan, None, self.segment.depth, begin

    def first_key(self, window):
        """The first slot that a query of the segment can see: path slots are position ids."""
        return 0 if window is None else max(0, self.segment.depth + 1 - window)


class SegmentAttention(torch.autograd.Function):
    """`Run.attend` with gradients. Buffers are held on the context and not among the saved tensors: later segments add
    to them, and a checkpoint that computes the forward again must meet the same slots."""

    @staticmethod
    def forward(ctx, run, layer, q, k, v, sinks, scale, window, softcap):
        slots = run.write(layer, k, v)
        begin, end = run.first_key(window), run.own.stop
        keys, values = slots.keys[begin:end], slots.values[begin:end]
        places = run.rectangle(q, keys, values, window, begin, end)
        out, lse = _ops.tree_attention_fwd(q, keys, values, *places, scale, window, softcap, sinks, False)
        ctx.save_for_backward(q, out, lse, sinks)
        ctx.run, ctx.layer, ctx.slots, ctx.options = run, layer, slots, (scale, window, softcap)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        run, layer, slots = ctx.run, ctx.layer, ctx.slots
        q, out, lse, sinks = ctx.saved_tensors
        if layer in run.consumed:
            raise RuntimeError(
                "a segment was back-propagated twice: its path's gradients are gone after the first time"
            )
        run.consumed.add(layer)
        dq = torch.zeros_like(q, dtype=accumulation_dtype(q.dtype), memory_format=torch.contiguous_format)
        wants_keys = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]

        def differentiate(begin, end, dkeys, dvalues, sinks):
            keys, values = slots.keys[begin:end], slots.values[begin:end]
            places = run.rectangle(q, keys, values, ctx.options[1], begin, end)
            return _ops.tree_attention_bwd_accum(
                dout, None, q, keys, values, out, lse, *places, *ctx.options, sinks, dq, dkeys, dvalues
            )

        begin, own = run.first_key(ctx.options[1]), run.own
        if not wants_keys:
            dsinks, dk, dv = differentiate(begin, own.stop, None, None, sinks), None, None
        elif run.path.exact:
            dkeys, dvalues = slots.gradients()
            dsinks = differentiate(begin, own.stop, dkeys[begin : own.stop], dvalues[begin : own.stop], sinks)
            dk, dv = take(dkeys[own], q.dtype), take(dvalues[own], q.dtype)
        else:
            dk, dv = (torch.zeros_like(x[own], dtype=dq.dtype) for x in (slots.keys, slots.values))
            if begin < own.start:
                differentiate(begin, own.start, None, None, None)
            dsinks = differentiate(own.start, own.stop, dk, dv, sinks)
            dk, dv = dk.to(q.dtype), dv.to(q.dtype)
        return None, None, dq.to(q.dtype), dk, dv, None if sinks is None else dsinks, None, None, None


def describe(layer):
    return f"a layer ({type(layer).__name__})" if isinstance(layer, torch.nn.Module) else f"layer {layer!r}"


def take(slots, dtype):
    """The gradients in these slots, which are zero afterwards."""
    taken = slots.to(dtype, copy=True)
    slots.zero_()
    return taken
