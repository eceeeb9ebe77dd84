"""What tree attention is compared with on a GPU. Each peer gets its operands in its own layout, outside the clock."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from gpu_workloads import HEADS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

GROUP = HEADS[0] // HEADS[1]
BOTH = ("cuda", "cpu")


@dataclass(frozen=True)
class Peer:
    """prepare(workload) -> (lay_out, attend, to_axis), all differentiable.

    `lay_out(q, k, v)` gives its operands in its own layout, `attend` of them is what is timed, and `to_axis` brings the
    result to [Tq,Hq,D], comparable with ours.
    """

    name: str
    applies: Callable
    prepare: Callable
    devices: tuple = ("cuda",)
    training_devices: tuple = ("cuda",)  # where it has a backward


def batched(workload, x):
    """x [B * n, H, D] -> [B, H, n, D], a view."""
    return x.view(workload.batch, -1, *x.shape[1:]).transpose(1, 2)


def from_batched(out):
    return out.transpose(1, 2).flatten(0, 1)


def equal_sequences(workload):
    """All tokens of a tree whose sequences are of one length, or one query behind each of many chains."""
    lengths = workload.tree.cu_seqlens.diff()
    whole = workload.query_index is None and bool((lengths == lengths[0]).all())
    return whole or (workload.chains and workload.num_queries == workload.batch)


def whole_or_chains(workload):
    return workload.query_index is None or workload.chains


def replicated(backend):
    """SDPA over every sequence whole."""

    def prepare(workload):
        tree, whole = workload.tree, workload.query_index is None

        def replicate(x):
            return tree.unpack(x).view(tree.num_sequences, -1, *x.shape[1:]).transpose(1, 2).contiguous()

        def lay_out(*tensors):
            return [replicate(x) if whole else batched(workload, x) for x in tensors]

        def attend(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=whole, enable_gqa=True)

        def to_axis(out):
            flat = from_batched(out)
            return tree.pack(flat) if whole else flat

        return lay_out, attend, to_axis

    return prepare


@lru_cache(maxsize=1)
def dense_mask(workload):
    """[B,1,n,L], once for all sets of operands."""
    position, end = workload.places()
    key = torch.arange(end.size(1), device=end.device)
    return ((key <= position[..., None]) & (position[..., None] < end[:, None]))[:, None]


def masked(workload):
    """SDPA with a boolean mask. The backend that takes one has no GQA: K and V are repeated, outside the clock."""
    mask = dense_mask(workload)

    def lay_out(q, k, v):
        return [batched(workload, x) for x in (q, k.repeat_interleave(GROUP, 1), v.repeat_interleave(GROUP, 1))]

    def attend(q, k, v):
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return lay_out, attend, from_batched


@lru_cache(maxsize=1)
def compiled_flex(workload):
    """FlexAttention and the tree's block mask, compiled for this workload: torch compiles a function for few shapes
    before it gives up, so it forgets the last workload's."""
    position, end = workload.places()

    def visible(b, h, query, key):
        return (key <= position[b, query]) & (position[b, query] < end[b, key])

    sizes = workload.batch, None, position.size(1), end.size(1)
    if not end.is_cuda:  # compiling for the CPU proves nothing here
        return flex_attention, create_block_mask(visible, *sizes, device=end.device)
    torch.compiler.reset()
    mask = create_block_mask(visible, *sizes, device=end.device, _compile=end.size(1) > 8192)
    return torch.compile(flex_attention, dynamic=False), mask


def flex(workload):
    """FlexAttention with the mask made and compiled outside the clock."""
    attend, mask = compiled_flex(workload)
    return (
        lambda *tensors: [batched(workload, x) for x in tensors],
        lambda q, k, v: attend(q, k, v, block_mask=mask, enable_gqa=True),
        from_batched,
    )


def causal_varlen(attend):
    """FlashAttention over sequences end to end. `attend(q, k, v, cu_q, cu_k, max_q, max_k)`: causal, the last query of
    a sequence at its last key."""

    def prepare(workload):
        tree, whole = workload.tree, workload.query_index is None
        cu_k = tree.cu_seqlens.int()
        if whole:
            cu_q = cu_k
        else:  # chains: the axis is the sequences end to end
            step = workload.num_queries // workload.batch
            cu_q = torch.arange(workload.batch + 1, dtype=torch.int32, device=cu_k.device) * step
        max_q, max_k = int(cu_q.diff().max()), int(cu_k.diff().max())
        return (
            lambda *tensors: [tree.unpack(x) if whole else x for x in tensors],
            lambda q, k, v: attend(q, k, v, cu_q, cu_k, max_q, max_k),
            tree.pack if whole else lambda out: out,
        )

    return prepare


def torch_varlen():
    """torch's own FlashAttention-2, or None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None

    def attend(q, k, v, cu_q, cu_k, max_q, max_k):
        return varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, window_size=(-1, 0), enable_gqa=True)

    return attend


def flash_attn_varlen():
    """The package flash-attn, or None."""
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return lambda *arguments: flash_attn_varlen_func(*arguments, causal=True)


VARLEN = {"torch varlen": torch_varlen, "flash-attn varlen": flash_attn_varlen}


def not_installed():
    """Entries for the report on peers that this machine does not have."""
    reason = "not installed"
    return [{"workload": "all", "peer": name, "reason": reason} for name, find in VARLEN.items() if find() is None]


def peers():
    """All that this machine has."""
    found = [
        Peer("SDPA flash", equal_sequences, replicated(SDPBackend.FLASH_ATTENTION), BOTH, BOTH),
        Peer("SDPA cuDNN", equal_sequences, replicated(SDPBackend.CUDNN_ATTENTION)),
        Peer("SDPA masked", lambda workload: workload.is_tree, masked, BOTH, BOTH),
        Peer("FlexAttention", lambda workload: True, flex, BOTH),
    ]
    for name, attend in ((name, find()) for name, find in VARLEN.items()):
        if attend:
            found.append(Peer(name, whole_or_chains, causal_varlen(attend)))
    return found
