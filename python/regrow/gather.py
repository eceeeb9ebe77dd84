"""Rows by index, and the adjoint: sums of rows by destination."""

import torch

from regrow import _load  # noqa: F401
from regrow.devices import same_device

__all__ = ["ReplayGather", "ReplayScatter", "replay_gather", "replay_scatter"]

ops = torch.ops.regrow


def replay_gather(src, index, *, out=None):
    """Copies rows of `src` by index: `out[i] = src[index[i]]`.

    src [R, ...] of any dtype; index [N] int64, unordered and repeated at will; returns [N, ...]. Differentiable without
    `out`, which must be a contiguous [N, ...] tensor of its own and is returned.
    Raises ValueError for an index outside [0, R), before anything is written; on CUDA the device asserts.

        tokens_of_sequence = regrow.replay_gather(hidden, tree.gather_index)
    """
    if out is None:
        return ops.replay_gather(src, index)
    _refuse_autograd("replay_gather", src=src, out=out)
    ops.replay_gather_out(src, index, out)
    _count_write(out)
    return out


def replay_scatter(src, index, num_rows, *, out=None):
    """Sums rows of `src` by destination: `out[r] = sum of src[i] over index[i] == r`, 0 where there is none.

    src [N, ...] of floats or integers; index [N] int64 in [0, num_rows); returns [num_rows, ...]. Sums run in order of
    i, in fp32 (fp64 for fp64; integers wrap), so results are the same bits on every run. Differentiable without `out`,
    which must be a contiguous [num_rows, ...] tensor of its own and is returned.
    Raises ValueError for an index outside [0, num_rows), before anything is written; on CUDA the device asserts.

        hidden_grad = regrow.replay_scatter(grad_of_sequence, tree.gather_index, tree.num_tokens)
    """
    if out is None:
        return ops.replay_scatter(src, index, num_rows)
    _refuse_autograd("replay_scatter", src=src, out=out)
    if out.dim() and out.size(0) != num_rows:
        raise ValueError(f"out has {out.size(0)} rows, num_rows is {num_rows}")
    ops.replay_scatter_out(src, index, out)
    _count_write(out)
    return out


def _refuse_autograd(name, **tensors):
    for argument, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ValueError(
                f"{name}(out=...) has no gradient, but {argument} requires one: leave out= away, or call it under "
                "torch.no_grad()"
            )


def _count_write(out):
    """Lets autograd see that `out` changed, should it have been saved for a backward."""
    if not torch.compiler.is_compiling():  # where functionalisation sees it by the schema
        torch.autograd.graph.increment_version(out)


class ReplayGather(torch.autograd.Function):
    """`ReplayGather.apply(src, index)`; its backward is the scatter."""

    @staticmethod
    def forward(src, index):
        return ops.replay_gather(src, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        src, index = inputs
        ctx.save_for_backward(index)
        ctx.num_rows = src.size(0)

    @staticmethod
    def backward(ctx, d_out):
        (index,) = ctx.saved_tensors
        return ops.replay_scatter(d_out, index, ctx.num_rows), None


class ReplayScatter(torch.autograd.Function):
    """`ReplayScatter.apply(src, index, num_rows)`; its backward is the gather."""

    @staticmethod
    def forward(src, index, num_rows):
        return ops.replay_scatter(src, index, num_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, d_out):
        (index,) = ctx.saved_tensors
        return ops.replay_gather(d_out, index), None, None


torch.library.register_autograd(
    "regrow::replay_gather", ReplayGather.backward, setup_context=ReplayGather.setup_context
)
torch.library.register_autograd(
    "regrow::replay_scatter", ReplayScatter.backward, setup_context=ReplayScatter.setup_context
)


@torch.library.register_fake("regrow::replay_gather")
def _(src, index):
    same_device(src=src, index=index)
    return src.new_empty(index.size(0), *src.shape[1:])


@torch.library.register_fake("regrow::replay_scatter")
def _(src, index, num_rows):
    same_device(src=src, index=index)
    return src.new_empty(num_rows, *src.shape[1:])


@torch.library.register_fake("regrow::replay_gather_out")
def _(src, index, out):
    same_device(src=src, index=index, out=out)


@torch.library.register_fake("regrow::replay_scatter_out")
def _(src, index, out):
    same_device(src=src, index=index, out=out)
