"""Log-probs of a tree from a causal LM: the hidden states that enter its head, and the head's weight."""

import torch

import regrow
from regrow.head import Head
from regrow.models.attached import packed, transformers_model

PROBE_SCALE = 16  # of the row that the head itself runs on: large enough that a softcap shows


def logprobs(model, tree, *, temperature=1.0, return_entropy=False):
    """Log-probability of every token of a tree under the model, 0 at roots: `regrow.tree_logprobs` of its last layer.

    `model` is a causal LM, wrapped or not, in train or eval mode as it stands. Returns logp [T], or (logp, entropy), as
    tree_logprobs does, differentiable in all parameters. Logits are never [T, V]: the head runs on one row, against
    which its softcap and scaling, read from the config, are checked.
    Raises ValueError as `packed` does, and for a head with a bias, with an adapter of its own, or with a step after it
    that regrow does not know.

        logp = regrow.models.logprobs(model, tree, temperature=0.7)
        per_sequence = tree.unpack(logp).split(tree.cu_seqlens.diff().tolist())
    """
    causal_lm = uncompiled(model)
    weight = linear_head(causal_lm).weight
    hidden, logits = last_hidden(model, tree)
    scale, softcap = find_scaling(causal_lm, PROBE_SCALE * hidden[:1], weight, logits)
    head = Head(weight, scale, softcap)
    return regrow.tree_logprobs(hidden, weight, tree, **head.options(temperature), return_entropy=return_entropy)


def uncompiled(model):
    """The causal LM in `model`. Raises ValueError if its hidden states cannot be had."""
    causal_lm = transformers_model(model)
    if hasattr(model, "_orig_mod") or causal_lm._compiled_call_impl is not None:
        raise ValueError(
            "the whole model is compiled, and its hidden states cannot be had: compile its decoder, "
            "model.model.compile(), or its layers"
        )
    return causal_lm


def last_hidden(model, tree, *, probe=True):
    """Runs the model on the tree: hidden [T,H], what enters its head, and logits [1,V] of the first row, magnified;
    without `probe` the head gets no rows, and logits are [0,V]."""
    head = linear_head(transformers_model(model))
    rows = []

    def keep_rows(_, arguments):
        rows.append(arguments[0])
        return PROBE_SCALE * arguments[0][:, : int(probe)]

    handle = head.register_forward_pre_hook(keep_rows)
    try:
        logits = packed(model, tree).logits
    finally:
        handle.remove()
    shapes = [list(row.shape[:2]) for row in rows]
    if shapes != [[1, tree.num_tokens]]:
        raise ValueError(f"the LM head must run once, on all {tree.num_tokens} rows, and ran on {shapes}")
    return rows[0][0].to(head.weight.dtype), logits[0]


def linear_head(causal_lm):
    """The head of a causal LM. Raises ValueError unless its logits are hidden @ weight.T."""
    head = causal_lm.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(causal_lm).__name__} has no LM head: give a causal LM")
    if not isinstance(head, torch.nn.Linear) or type(head).forward is not torch.nn.Linear.forward:
        raise ValueError(
            f"the LM head is a {type(head).__module__}.{type(head).__name__}, whose logits are more than "
            "hidden @ weight.T: leave adapters and quantisation off the head"
        )
    if head.bias is not None:
        raise ValueError("the LM head has a bias, which tree_logprobs does not add: use a head without one")
    return head


@torch.no_grad()
def find_scaling(causal_lm, hidden, weight, logits):
    """(scale, softcap) with which softcap * tanh(scale * hidden @ weight.T / softcap) is logits [1,V], one row's.

    Configs name them alike and apply them differently (multiplied, divided, before the head), so they are tried.
    """
    config = causal_lm.config.get_text_config(decoder=True)
    softcap = getattr(config, "final_logit_softcapping", None)
    named = [value for name in ("logit_scale", "logits_scaling") if (value := getattr(config, name, None))]
    product = torch.nn.functional.linear(hidden, weight).double()

    def error(scale):
        expected = product * scale if softcap is None else softcap * torch.tanh(product * scale / softcap)
        return ((expected - logits).abs().max() / expected.abs().max()).item()

    errors = {scale: error(scale) for scale in [*named, *(1 / value for value in named), 1.0]}
    best = min(errors, key=errors.get)
    if not errors[best] > 0.02:  # rounding to bf16 moves a logit by 0.4 %; NaN compares false, and stays NaN
        return best, softcap
    raise ValueError(
        f"{type(causal_lm).__name__}'s logits are not its head's weight times the hidden state, scaled and capped as "
        f"its config says (softcap {softcap}, scaling {named}): compute them by packed(model, tree)"
    )
