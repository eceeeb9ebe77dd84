"""A transformers causal LM under `regrow.replay`: its hidden states by segment, and its head."""

from regrow.head import Head
from regrow.models.checks import longest_length, refuse_model, rotary_settings
from regrow.models.head import PROBE_SCALE, find_scaling, last_hidden, linear_head, uncompiled


class TransformersModel:
    """The replay protocol (`regrow.replay.Replayable`) for a model that `regrow.models.attach` has switched.

    The head's scale and softcap are found on the first run, and compared with the model's own logits there.
    """

    def __init__(self, model):
        self.model, self.causal_lm = model, uncompiled(model)
        self.weight = linear_head(self.causal_lm).weight
        self.head = None

    def check(self, tree):
        refuse_model(self.causal_lm, tree)
        refuse_auxiliary_loss(self.causal_lm.config.get_text_config(decoder=True))

    @property
    def context_tokens(self):
        """The longest sequence whose positions the model knows, or None."""
        config = self.causal_lm.config.get_text_config(decoder=True)
        limits = [longest_length(config, rope) for rope in rotary_settings(config)]
        limits.append(getattr(config, "max_position_embeddings", None))
        return min((limit for limit in limits if limit is not None), default=None)

    def replay_hidden(self, segment):
        hidden, logits = last_hidden(self.model, segment, probe=self.head is None)
        if self.head is None:
            self.head = Head(self.weight, *find_scaling(self.causal_lm, PROBE_SCALE * hidden[:1], self.weight, logits))
        return hidden

    def replay_head(self):
        return self.head or Head(self.weight)


def refuse_auxiliary_loss(config):
    """Raises ValueError where the model's own loss has a term that is no function of log-probs."""
    coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    if getattr(config, "output_router_logits", False) and coefficient:
        raise ValueError(
            f"the router's load-balancing loss (coefficient {coefficient}) is no function of log-probs, and replay "
            "would leave it out: set config.router_aux_loss_coef = 0.0 or config.output_router_logits = False"
        )
