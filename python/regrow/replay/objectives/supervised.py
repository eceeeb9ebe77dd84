"""Cross-entropy on the response tokens."""

from regrow.replay.objectives.objective import TokenSum
from regrow.replay.objectives.samples import Samples


class SFT(TokenSum):
    """Supervised fine-tuning: minus the log-prob of each response token, times its weight.

    response_mask: bool, the tokens to learn; weights: one number per token, or None: 1; both as lists or end to end
    with `cu_seqlens`, as for `PolicyObjective`. aggregation: "token-mean", "sequence-mean", "sequence-sum", or a number
    that divides the sum; means count tokens, not weights.
    Raises ValueError for data that do not fit each other, and NaN or inf at a response token.

        objective = SFT(response_mask, cu_seqlens=tree.cu_seqlens)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, *, weights=None, cu_seqlens=None, aggregation="token-mean"):
        super().__init__(Samples.read(response_mask, cu_seqlens).with_token_data(weights=weights), aggregation)

    def token_losses(self, logp, entropy, data):
        return -data["weights"] * logp if "weights" in data else -logp
