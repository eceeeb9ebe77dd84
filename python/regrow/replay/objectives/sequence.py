"""GSPO, whose ratio is that of whole responses."""

import torch

from regrow.replay.objectives.inputs import is_per_token
from regrow.replay.objectives.objective import Objective
from regrow.replay.objectives.samples import Samples
from regrow.replay.objectives.terms import Clip, Penalties, token_shares


class GSPO(Objective):
    """The clipped surrogate of each sequence's ratio, the geometric mean of its tokens', averaged over sequences.

    s = exp(mean over response tokens of log policy - log old policy); minus the mean of min(s A, clip(s) A). No sum
    over tokens, so the replay engine computes all log-probs first.
    response_mask, old_logprobs, reference_logprobs, kl_coefficient, kl_estimator, entropy_coefficient: as for
    `PolicyObjective`, penalties as "sequence-mean"; advantages: one number per sequence; clip: one number or (low,
    high). A sequence without response tokens adds 0 and is counted.
    Raises ValueError as `PolicyObjective` does, and for advantages per token.
    Zheng et al., "Group Sequence Policy Optimization", eq. 5 to 7; the clip is section 5.1's.

        objective = GSPO(response_mask, group_advantages(rewards, 8), old_logprobs=old_logprobs)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(
        self,
        response_mask,
        advantages,
        *,
        clip=(3e-4, 4e-4),
        old_logprobs=None,
        reference_logprobs=None,
        cu_seqlens=None,
        kl_coefficient=None,
        kl_estimator="k3",
        entropy_coefficient=0.0,
    ):
        self.clip = Clip.read(clip)
        self.penalties = Penalties.read(kl_coefficient, kl_estimator, entropy_coefficient, reference_logprobs)
        samples = Samples.read(response_mask, cu_seqlens)
        if is_per_token(advantages, samples.lengths):
            raise ValueError("advantages has one number per token, but GSPO's ratio is a sequence's: give one for each")
        samples = samples.with_token_data(old_logprobs=old_logprobs, reference_logprobs=reference_logprobs)
        share = token_shares("sequence-mean", samples.num_responses)
        super().__init__(samples.with_sequence_data(advantages=advantages, share=share))

    def __call__(self, logprobs, tree, entropy):
        samples = self.samples
        logp = self.of_responses(logprobs, tree)
        data = samples.data_as(logprobs)
        advantages, share = (samples.sequence_data[name].to(logprobs.dtype) for name in ("advantages", "share"))
        num_responses = samples.num_responses

        log_ratio = samples.sum_of_sequences(logp - data.get("old_logprobs", logp.detach()))
        surrogate = self.clip.surrogate(log_ratio / num_responses.clamp(min=1), advantages)
        loss = -(share * num_responses * surrogate).sum()  # a sequence without response tokens has ratio 1, and adds 0
        entropy = self.of_responses(entropy, tree) if self.penalties.entropy_coefficient else None
        penalties = self.penalties.add(torch.zeros_like(logp), logp, entropy, data)
        return loss + (share[samples.sequence] * penalties).sum()
