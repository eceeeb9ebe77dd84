"""Switching one model to tree attention, and calling it on a tree."""

import copy
from contextlib import nullcontext

from transformers import PreTrainedConfig, PreTrainedModel

from regrow.models.calls import enter, finish, leave, running
from regrow.models.checks import NAME, refuse_inputs, refuse_labels, refuse_model, refuse_own_positions


def attach(model):
    """Switches this model, and no other, to regrow's attention, and checks its every call with `tree=`. Returns it.

    `model` may be wrapped (PEFT, accelerate, DistributedDataParallel). Its modules get copies of their config objects,
    so that a reference model which shares them stays as it was; `model.config` is then another object than before.
    Calling it again changes nothing; `model.set_attn_implementation("sdpa")` goes back. Raises ValueError if there is
    no transformers model inside, one whose attention cannot be switched, or one that takes no position_ids.

        model = regrow.models.attach(model)
        logits = model(
            input_ids=tree.tokens[None], position_ids=tree.position_ids[None], tree=tree, use_cache=False
        ).logits[0]
    """
    outer = transformers_model(model)
    if not outer._can_set_attn_implementation():
        raise ValueError(
            f"{type(outer).__name__} does not take its attention from transformers' AttentionInterface, so regrow "
            "cannot replace it"
        )
    refuse_own_positions(outer)
    if not is_attached(outer):
        give_own_configs(model)
        for module in outer.modules():
            if isinstance(module, PreTrainedModel):
                module.register_forward_pre_hook(refuse_call, with_kwargs=True)
                module.register_forward_hook(end_call, always_call=True)
    outer.set_attn_implementation(NAME)
    return model


def packed(model, tree, **options):
    """Calls `model`, a causal LM or its decoder, wrapped or not, on the whole tree, and returns its output for batch 1.

    Raises ValueError if its attention implementation would ignore the tree, and for all that a tree excludes
    (docs/models.md).

        hidden = packed(model.model, tree).last_hidden_state[0]     # [T, H]
        logp = regrow.tree_logprobs(hidden, model.lm_head.weight, tree)
    """
    if tree.tokens is None:
        raise ValueError("the tree has no tokens to give the model: give from_nodes its tokens")
    outer = transformers_model(model)
    refuse_model(outer, tree)
    refuse_labels(options)
    with nullcontext() if is_attached(outer) else running(outer):
        return model(
            input_ids=tree.tokens[None], position_ids=tree.position_ids[None], tree=tree, use_cache=False, **options
        )


def transformers_model(model):
    """The outermost transformers model in `model`. Raises ValueError if there is none."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"there is no transformers model in this {type(model).__name__}")


def is_attached(module):
    return refuse_call in module._forward_pre_hooks.values()


def refuse_call(module, arguments, options):
    """The forward pre-hook of attached models: raises ValueError if a call with tree= contradicts it."""
    tree = options.get("tree")
    if tree is not None:
        refuse_model(module, tree)
        refuse_labels(options)
        input_ids = arguments[0] if arguments else options.get("input_ids")
        refuse_inputs(tree, input_ids, options.get("position_ids"))
        enter(module)
    else:
        leave(module)  # of a call that was interrupted


def end_call(module, _, output):
    """The forward hook of attached models, for calls that raise too: raises ValueError if attention saw no tree."""
    if output is None:
        leave(module)
    else:
        finish(module)


def give_own_configs(model):
    """Replaces each config object in the model's modules by a copy; modules that shared one share its copy."""
    copies = {}  # deepcopy's memo: a config inside another is copied once for both
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, copies))
