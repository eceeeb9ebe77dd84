"""A transformers causal LM under `regrow.replay`: its hidden states by segment, and its head."""

from regrow.head import Head
from regrow.models.checks import refuse_model
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

    def replay_hidden(self, segment):
        hidden, logits = last_hidden(self.model, segment)
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
