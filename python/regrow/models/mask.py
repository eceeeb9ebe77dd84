"""What stands in for an attention mask until somebody needs one."""

from functools import cached_property

import torch
from transformers.masking_utils import sdpa_mask


def lazy_mask(**request):
    """The mask function: a LazyMask where the keys are the queries, SDPA's mask where a cache holds more keys.

    A tree excludes a filled cache, and `generate` with a static cache makes masks ahead, for a compiled forward to take
    as its attention_mask; one that is still lazy then comes back here.
    """
    if isinstance(request.get("attention_mask"), LazyMask):
        return request["attention_mask"]
    offset = request.get("q_offset", 0)
    alone = isinstance(offset, int) and offset == 0 and request.get("kv_length") == request.get("q_length")
    return LazyMask(**request) if alone else sdpa_mask(**request)


class LazyMask:
    """A mask that was asked for and not built: a tree needs none, and without a tree it becomes SDPA's.

    transformers hands whatever the mask function returns to every attention layer untouched. What is found out about
    the request is kept here, so that it is found out once per forward pass and not per layer.
    """

    ndim = 4  # what transformers looks at, to tell masks that are made from those to be made

    def __init__(self, **request):
        self.request = request
        self.checked_positions = None  # the position_ids that were found to be the tree's
        self.checked_for = None, None  # the tree and config with which mask and config were found to agree

    @property
    def window(self):
        """The sliding window in tokens, or None. Eager and SDPA know no other: layers' own arguments are for others."""
        return self.request.get("local_size")

    @property
    def chunked(self):
        """Whether the layer attends inside fixed chunks, which reuse the argument that otherwise holds a window."""
        return self.window is not None and self.window == getattr(
            self.request.get("config"), "attention_chunk_size", None
        )

    @property
    def custom(self):
        """Whether the model adds to, or takes from, causal attention by a function of its own."""
        return self.request.get("use_vmap", False)

    @cached_property
    def causal(self):
        """Whether no token sees the next one: false for encoders, and for blocks such as images that see themselves."""
        function = self.request.get("mask_function")
        if function is None or torch.compiler.is_compiling():
            return True
        query = torch.arange(self.request["q_length"] - 1, device=self.request.get("device"))
        batch = head = torch.zeros_like(query)
        return not bool(function(batch, head, query, query + 1).any())

    @cached_property
    def padded(self):
        attention_mask = self.request.get("attention_mask")
        return attention_mask is not None and not bool(attention_mask.all())

    @cached_property
    def dense(self):
        return sdpa_mask(**self.request)


def additive(mask, query, key):
    """SDPA's mask (a boolean one, an additive one, or None for causal) as the additive one that eager attention takes.

    query [B,H,Tq,D], key [B,H,Tk,D] -> [..., Tq, Tk] in query's dtype, or None where every query sees every key.
    """
    if mask is None:
        if query.size(2) == 1:
            return None
        mask = torch.ones(query.size(2), key.size(2), dtype=torch.bool, device=query.device).tril()
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
