"""The attention function that transformers calls under the name "regrow"."""

import sys
from functools import partial

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import regrow
from regrow.models.calls import reach, refuse_dropped_tree
from regrow.models.checks import NAME, refuse_layer
from regrow.models.mask import LazyMask, additive, lazy_mask


def register():
    """Makes `model.set_attn_implementation("regrow")` known to transformers; doing it twice changes nothing."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, lazy_mask)


def attention(module, query, key, value, attention_mask, tree=None, **options):
    """Attention along every path of `tree`; without a tree, SDPA.

    query [B,Hq,T,D], key [B,Hkv,T,D], value [B,Hkv,T,Dv] -> (out [B,T,Hq,Dv], None). With a tree, B is 1, T its tokens;
    a segment of a replay (`regrow.replay.run.Run`) stands in for a tree and attends by its own method.
    Raises ValueError where the model's other arguments contradict the tree.
    """
    if tree is None:
        refuse_dropped_tree(module, attention_mask)
        return attention_without_tree(module, query, key, value, attention_mask, options)
    refuse_layer(module, query, key, attention_mask, tree, options)
    reach()
    scale = options.get("scaling")
    attend = partial(tree.attend, module) if hasattr(tree, "attend") else partial(regrow.tree_attention, tree=tree)
    out = attend(
        packed_rows(query.to(value.dtype)),  # autocast rounds values, and leaves queries that rotary made in fp32
        packed_rows(key.to(value.dtype)),
        packed_rows(value),
        scale=query.size(-1) ** -0.5 if scale is None else scale,
        window=attention_mask.window,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )
    return out[None, :, :, : value.size(-1)], None


def packed_rows(x):
    """[1,H,T,D] -> [T,H,D], D filled with zeros up to a multiple of 8: they add nothing to a score or an output."""
    x = x[0].transpose(0, 1)
    if x.size(-1) % 8:
        return torch.nn.functional.pad(x, (0, -x.size(-1) % 8))
    return x if x.stride(-1) == 1 else x.contiguous()


def attention_without_tree(module, query, key, value, attention_mask, options):
    """SDPA, or for softcap and sinks, which it has no argument for, the eager attention of the model's own file."""
    mask = attention_mask.dense if isinstance(attention_mask, LazyMask) else attention_mask
    if options.get("softcap") is None and options.get("s_aux") is None:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ValueError(
            f"{type(module).__name__} has softcap or sinks, which SDPA cannot run, and no eager_attention_forward "
            "to run instead: pass tree=, or use another attention implementation"
        )
    return eager(module, query, key, value, additive(mask, query, key), **options)
