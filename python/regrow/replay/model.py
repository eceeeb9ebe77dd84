"""What the engine needs of a model: hidden states of a segment, and a head."""

import math

import torch

from regrow.head import Head

RANDOM = ("dropout", "drop_path", "pdrop", "layerdrop", "jitter")  # in the names of rates that modules keep

__all__ = ["Head", "Replayable", "adapt", "check"]


class Replayable(torch.nn.Module):
    """The protocol by which a plain `nn.Module` takes part; a subclass, or any module with these two methods.

    class Policy(nn.Module):
        def replay_hidden(self, segment):
            x = self.embedding(segment.tokens) + self.positions(segment.position_ids)
            for layer in self.layers:
                q, k, v = layer.project(x)  # [S,Hq,D], [S,Hkv,D], [S,Hkv,Dv]
                x = layer.mix(x, segment.attend(layer, q, k, v))
            return x

        def replay_head(self):
            return Head(self.head.weight)
    """

    def replay_hidden(self, segment):
        """Last hidden states [S,H] of the segment's tokens.

        `segment` has `tokens` and `position_ids`, int64 [S], and `attend(layer, q, k, v, *, scale=None, window=None,
        softcap=None, sinks=None)`, through which all that one token takes from another must pass. It may be called for
        one segment several times, and must then compute the same bits.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how it computes hidden states: replay_hidden")

    def replay_head(self):
        """The `Head` that turns hidden states into log-probs."""
        raise NotImplementedError(f"{type(self).__name__} must give its head: replay_head")


def adapt(model):
    """`model` itself if it follows the protocol, else the transformers model in it. Raises ValueError for neither.

    DistributedDataParallel's own forward may send buffers to all ranks, of which some may have no segment to run, and
    the others would wait for them: the module in it is called.
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give a transformers causal LM or an nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    if callable(getattr(model, "replay_hidden", None)) and callable(getattr(model, "replay_head", None)):
        return model
    from regrow.models.replayed import TransformersModel  # which imports transformers

    return TransformersModel(model)


def check(model, adapted, tree, temperature, *, training=False):
    """Raises ValueError for what would end in a wrong number, before any work.

    training: whether gradients are asked for.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}, must be positive and finite")
    if tree.tokens is None:
        raise ValueError("the tree has no tokens to give the model: give from_nodes its tokens")
    weight = adapted.replay_head().weight
    if tree.subtree_end.device != weight.device:
        raise ValueError(
            f"the tree is on {tree.subtree_end.device}, the model's head on {weight.device}: use tree.to(device)"
        )
    if tree.num_tokens:
        largest = int(tree.tokens.max())
        if largest >= weight.size(0):
            raise ValueError(
                f"the tree holds token {largest}, the model's vocabulary has {weight.size(0)}: "
                "they were made by different tokenizers"
            )
    if torch.is_inference_mode_enabled():
        raise ValueError("replay keeps tensors between its runs, which inference_mode forbids: use torch.no_grad()")
    if hasattr(adapted, "check"):
        adapted.check(tree)
    refuse_dropout(model)
    if training and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of the model requires a gradient: call requires_grad_() on those to train")


def refuse_dropout(model):
    """Raises ValueError for modules that would drop at random: a segment's two runs would differ."""
    for name, module in model.named_modules():
        if not module.training:
            continue
        rates = [module.p] if isinstance(module, torch.nn.modules.dropout._DropoutNd) else []
        rates += [
            value
            for attribute, value in vars(module).items()
            if isinstance(value, float) and any(word in attribute for word in RANDOM)
        ]
        if rate := max(rates, default=0.0):
            raise ValueError(
                f"{name or type(module).__name__} drops or disturbs values at random (rate {rate}) in train mode, and "
                "what runs twice must repeat: set it to 0, or call model.eval()"
            )
