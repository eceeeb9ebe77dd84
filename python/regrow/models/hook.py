"""The attention and mask functions that transformers calls under the name "regrow"."""

from functools import cached_property

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import regrow

NAME = "regrow"


class LazyMask:
    """A mask that was asked for and not built: a tree needs none, and without a tree it becomes SDPA's.

    transformers hands whatever the mask function returns to every attention layer untouched.
    """

    def __init__(self, **request):
        self.request = request

    @property
    def window(self):
        """The sliding window in tokens, or None; some families give it to the mask function only."""
        return self.request.get("local_size")

    @property
    def chunked(self):
        """Whether the layer attends inside fixed chunks, which reuse the argument that otherwise holds a window."""
        config = self.request.get("config")
        return self.window is not None and getattr(config, "attention_chunk_size", None) is not None

    @cached_property
    def padded(self):
        attention_mask = self.request.get("attention_mask")
        return attention_mask is not None and not bool(attention_mask.all())

    @cached_property
    def dense(self):
        return sdpa_mask(**self.request)


def attention(module, query, key, value, attention_mask, tree=None, **options):
    """Attention along every path of `tree`; without a tree, SDPA.

    query [B,Hq,T,D], key [B,Hkv,T,D], value [B,Hkv,T,Dv] -> (out [B,T,Hq,Dv], None). With a tree, B is 1, T its tokens.
    Raises ValueError where the model's other arguments contradict the tree.
    """
    if tree is None:
        if options.get("s_aux") is not None:
            raise ValueError("this model has attention sinks, which SDPA cannot run: pass tree=, or use 'eager'")
        dense = attention_mask.dense if isinstance(attention_mask, LazyMask) else attention_mask
        return sdpa_attention_forward(module, query, key, value, dense, **options)

    refuse_contradictions(query, key, attention_mask, tree, options.get("dropout", 0.0))
    out = regrow.tree_attention(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        tree,
        scale=options.get("scaling"),
        window=options.get("sliding_window") or attention_mask.window,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )
    return out[None], None


def refuse_contradictions(query, key, mask, tree, dropout):
    """Raises ValueError for what a tree excludes: each case would otherwise be a silent wrong number."""
    batch, _, num_queries, _ = query.shape
    if batch != 1 or num_queries != tree.num_tokens:
        raise ValueError(
            f"input_ids is [{batch}, {num_queries}], the tree has {tree.num_tokens} tokens: "
            "pass input_ids=tree.tokens[None]"
        )
    if key.size(2) != num_queries:
        raise ValueError(
            f"tree= excludes a filled cache: {key.size(2)} keys for {num_queries} tokens; pass use_cache=False"
        )
    if not isinstance(mask, LazyMask):
        raise ValueError("tree= excludes a 4-D attention mask: the tree says who sees whom; leave attention_mask out")
    if mask.padded:
        raise ValueError("tree= excludes padding: a tree holds real tokens only; leave attention_mask out")
    if mask.chunked:
        raise ValueError("tree= excludes chunked attention (attention_chunk_size), which regrow does not compute")
    if dropout:
        raise ValueError(
            f"tree= excludes attention dropout, got {dropout}: set config.attention_dropout = 0 or call model.eval()"
        )


def packed(model, tree, **options):
    """Calls `model`, a causal LM or its decoder, on the whole tree, and returns what it returns for batch 1.

    Raises ValueError if the model's attention implementation would ignore the tree.

        hidden = packed(model.model, tree).last_hidden_state[0]     # [T, H]
        logp = regrow.tree_logprobs(hidden, model.lm_head.weight, tree)
    """
    implementation = model.config._attn_implementation
    if implementation != NAME:
        raise ValueError(
            f"attention implementation {implementation!r} ignores tree=: "
            f"call model.set_attn_implementation({NAME!r}) first"
        )
    return model(
        input_ids=tree.tokens[None], position_ids=tree.position_ids[None], tree=tree, use_cache=False, **options
    )


def register():
    """Makes `model.set_attn_implementation("regrow")` known to transformers; doing it twice changes nothing."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, LazyMask)
