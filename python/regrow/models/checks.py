"""What a tree excludes: each refusal here would otherwise be a silent wrong number."""

import inspect

import torch

from regrow.models.mask import LazyMask

NAME = "regrow"

LAYER_TYPES = {"full_attention", "sliding_attention"}
TENSOR_OPTIONS = {"position_ids", "s_aux", "num_items_in_batch"}  # what a layer may receive; others change attention


def refuse_model(model, tree):
    """Raises ValueError if `model`, a transformers model, would ignore the tree or could not follow its paths."""
    config = model.config.get_text_config(decoder=True)
    implementation = config._attn_implementation
    if implementation != NAME:
        raise ValueError(
            f"attention implementation {implementation!r} ignores tree=: call regrow.models.attach(model), "
            f"or model.set_attn_implementation({NAME!r})"
        )
    refuse_own_positions(model)
    refuse_config(config, tree)


def refuse_own_positions(model):
    """Raises ValueError unless the decoder in `model` names position_ids: what **kwargs swallow, it does not embed.

    Not under torch.compile, which cannot trace a signature; `attach` has looked before.
    """
    if torch.compiler.is_compiling():
        return
    decoder = model.get_decoder()
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        raise ValueError(
            f"{type(decoder).__name__} takes no position_ids: it counts positions along the axis, which on a tree is "
            "across branches"
        )


def refuse_labels(options):
    if options.get("labels") is not None:
        raise ValueError(
            "labels= would be shifted along the packed axis, across branches: "
            "compute the loss from regrow.models.logprobs"
        )


def refuse_config(config, tree):
    """Raises ValueError for layers and rotary scalings under which a path of a tree is not that path alone."""
    for kind in getattr(config, "layer_types", None) or ():
        if kind == "chunked_attention":
            raise ValueError("tree= excludes chunked attention (attention_chunk_size), which regrow does not compute")
        if kind not in LAYER_TYPES:
            raise ValueError(
                f"tree= excludes layers of type {kind!r}, which would mix branches: "
                "regrow computes full and sliding-window attention"
            )
    for rope in rotary_settings(config):
        limit = longest_length(config, rope)
        if limit is None or tree.num_tokens == 0:
            continue
        longest = int(tree.host_position_ids.max()) + 1
        if longest > limit:
            raise ValueError(
                f"rotary scaling {rope['rope_type']!r} depends on the longest position: the tree's longest path has "
                f"{longest} tokens, and up to {limit} every path keeps its own numbers; shorten the sequences"
            )


def rotary_settings(config):
    """The rope_parameters of a config, which some models hold per type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value]
    return nested or [rope for rope in [parameters] if "rope_type" in rope]


def longest_length(config, rope):
    """How long a path may be before the frequencies of other paths depend on it; None for no limit."""
    if rope["rope_type"] == "longrope":
        return rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    if "dynamic" in rope["rope_type"]:
        return config.max_position_embeddings - 1  # a stretched state is taken back below the original length only
    return None


def refuse_inputs(tree, input_ids, position_ids):
    """Raises ValueError unless these are the tree's tokens (None where embeddings replace them) and positions."""
    if input_ids is not None:
        refuse_shape(input_ids.shape, tree)
        refuse_device(input_ids.device, tree)
        if tree.tokens is not None and not same(input_ids, tree.tokens):
            raise ValueError("input_ids are not the tree's tokens: pass input_ids=tree.tokens[None]")
    refuse_positions(position_ids, tree)


def refuse_shape(shape, tree):
    if tuple(shape) != (1, tree.num_tokens):
        raise ValueError(
            f"input_ids is {list(shape)}, the tree has {tree.num_tokens} tokens: pass input_ids=tree.tokens[None]"
        )


def refuse_device(device, tree):
    if tree.subtree_end.device != device:
        raise ValueError(
            f"the tree is on {tree.subtree_end.device}, the model's inputs on {device}: use tree.to(device)"
        )


def refuse_positions(position_ids, tree):
    """position_ids [..., T], None if the caller left them out."""
    if position_ids is None:
        raise ValueError("position_ids is missing, which tree= needs: pass position_ids=tree.position_ids[None]")
    if position_ids.size(-1) != tree.num_tokens or not same(position_ids, tree.position_ids):
        raise ValueError(
            "position_ids are not the tree's (left out, they count along the axis, across branches): "
            "pass position_ids=tree.position_ids[None]"
        )


def same(values, expected):
    """Whether values [..., T] repeat expected [T]. A view of it is not read, which an accelerator would wait for.

    Under torch.compile nothing is read.
    """
    if torch.compiler.is_compiling():
        return True
    alike = values.device == expected.device and values.dtype == expected.dtype and values.is_contiguous()
    if alike and values.numel() == expected.numel() and values.data_ptr() == expected.data_ptr():
        return True
    return bool((values == expected.to(values.device)).all())


def refuse_layer(module, query, key, mask, tree, options):
    """Raises ValueError for what contradicts the tree in one attention layer's call.

    query, key [B,H,T,D]; mask as it reached the layer; options: the layer's keyword arguments.
    """
    refuse_shape((query.size(0), query.size(2)), tree)
    refuse_device(query.device, tree)
    if key.size(2) != query.size(2):
        raise ValueError(
            f"tree= excludes a filled cache: {key.size(2)} keys for {query.size(2)} tokens; pass use_cache=False"
        )
    refuse_mask_and_config(mask, getattr(module, "config", None), tree)
    if not options.get("is_causal", True) or not getattr(module, "is_causal", True):
        raise ValueError("tree= excludes attention that is not causal: on a tree, tokens see their ancestors only")
    if options.get("dropout", 0.0):
        raise ValueError(
            f"tree= excludes attention dropout, got {options['dropout']}: "
            "set config.attention_dropout = 0 before the model is made, or call model.eval()"
        )
    for name, value in options.items():
        if isinstance(value, torch.Tensor) and name not in TENSOR_OPTIONS:
            raise ValueError(f"tree= excludes the argument {name!r} of attention, whose meaning regrow does not know")
    if options.get("position_ids") is None:
        raise ValueError(
            f"position_ids is missing at {type(module).__name__}: pass position_ids=tree.position_ids[None]; if you "
            "do, this model does not hand them to its attention, and regrow cannot tell whether it obeys them"
        )
    if mask.checked_positions is None or mask.checked_positions is not options["position_ids"]:
        refuse_positions(options["position_ids"], tree)
        mask.checked_positions = options["position_ids"]


def refuse_mask_and_config(mask, config, tree):
    """`refuse_mask` and `refuse_config`, once for the layers of a forward that share a mask."""
    checked = mask.checked_for if isinstance(mask, LazyMask) else (None, None)
    if checked[0] is tree and checked[1] is config:
        return
    refuse_mask(mask)
    refuse_config(config, tree)
    mask.checked_for = tree, config


def refuse_mask(mask):
    if isinstance(mask, torch.Tensor):
        raise ValueError("tree= excludes a 4-D attention mask: the tree says who sees whom; leave attention_mask out")
    if not isinstance(mask, LazyMask):
        raise ValueError(f"tree= needs a mask made by transformers' mask functions, the model gave {mask!r}")
    if mask.padded:
        raise ValueError(
            "tree= excludes padding: a tree holds real tokens only; leave attention_mask out "
            "(PrefixTree.from_padded reads one)"
        )
    if mask.chunked:
        raise ValueError("tree= excludes chunked attention (attention_chunk_size), which regrow does not compute")
    if mask.custom or not mask.causal:
        raise ValueError("tree= excludes a mask that is not causal: on a tree, tokens see their ancestors only")
