"""Policy objectives that are sums over tokens: PPO, GRPO, Dr. GRPO, DAPO, CISPO.

Their data come in one of two forms. A list has one 1-D tensor per sequence, prompt included. A tensor has all sequences
end to end, as `tree.unpack` returns them, and then `cu_seqlens` says where they end; of a padded batch that is
`values[attention_mask.bool()]` with `tree.cu_seqlens`.
"""

from regrow.replay.objectives.inputs import is_per_token, read_number, read_sequence_data
from regrow.replay.objectives.objective import TokenSum
from regrow.replay.objectives.samples import Samples
from regrow.replay.objectives.terms import Clip, Penalties


class PolicyObjective(TokenSum):
    """Minus a surrogate of the expected reward, plus penalties, over response tokens; subclasses have `surrogate`.

    response_mask: bool, the tokens that the policy produced (not those of a tool's answer, say).
    advantages: one number per sequence, or one per token.
    old_logprobs: under the policy that sampled the tokens; None: under the policy as it is, so the ratio is 1.
    reference_logprobs, kl_coefficient: both or neither; adds the coefficient times the kl_estimator ("k1", "k2", "k3")
    of KL(policy || reference).
    entropy_coefficient: what is subtracted for each nat of entropy.
    aggregation: how tokens make one loss: "token-mean", "sequence-mean", "sequence-sum", or a number that divides their
    sum (`terms.token_shares`).
    Data of other floating-point types are converted to that of the log-probs; outside the mask they are not read.
    Raises ValueError for data that do not fit each other, NaN or inf at a response token, and options out of range.
    """

    def __init__(
        self,
        response_mask,
        advantages,
        *,
        old_logprobs=None,
        reference_logprobs=None,
        cu_seqlens=None,
        aggregation="token-mean",
        kl_coefficient=None,
        kl_estimator="k3",
        entropy_coefficient=0.0,
    ):
        self.penalties = Penalties.read(kl_coefficient, kl_estimator, entropy_coefficient, reference_logprobs)
        samples = Samples.read(response_mask, cu_seqlens)
        if not is_per_token(advantages, samples.lengths):
            advantages = read_sequence_data("advantages", advantages, samples.lengths)
            advantages = advantages.repeat_interleave(samples.lengths)
        samples = samples.with_token_data(
            advantages=advantages, old_logprobs=old_logprobs, reference_logprobs=reference_logprobs
        )
        super().__init__(samples, aggregation)

    @property
    def reads_entropy(self):
        return self.penalties.entropy_coefficient != 0

    def token_losses(self, logp, entropy, data):
        log_ratio = logp - data.get("old_logprobs", logp.detach())
        losses = -self.surrogate(logp, log_ratio, data["advantages"])
        return self.penalties.add(losses, logp, entropy, data)

    def surrogate(self, logp, log_ratio, advantages):
        """[M]: what grows with the expected reward, for each response token; all arguments [M]."""
        raise NotImplementedError


class PPO(PolicyObjective):
    """PPO's clipped surrogate, min(r A, clip(r, 1 - low, 1 + high) A), with r = policy / old policy.

    Takes what `PolicyObjective` does, and: clip, one number or (low, high); dual_clip, a bound c > 1 of the ratio where
    the advantage is negative, max(min(...), c A), or None.
    Schulman et al., "Proximal Policy Optimization Algorithms", eq. 7; the dual clip: Ye et al., "Mastering Complex
    Control in MOBA Games with Deep Reinforcement Learning".

        objective = PPO(response_mask, token_advantages, old_logprobs=old_logprobs, dual_clip=3.0)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, advantages, *, clip=0.2, dual_clip=None, **options):
        self.clip = Clip.read(clip, dual_clip)
        super().__init__(response_mask, advantages, **options)

    def surrogate(self, logp, log_ratio, advantages):
        return self.clip.surrogate(log_ratio, advantages)


class GRPO(PPO):
    """PPO's surrogate with `group_advantages`: the mean over sequences of each one's mean over tokens.

    Takes what `PPO` does. A sequence without response tokens adds 0 and is counted.
    Shao et al., "DeepSeekMath", eq. 3; its KL term (eq. 4) is k3, with coefficient 0.04 in section 4.2.

        objective = GRPO(response_mask, group_advantages(rewards, 8), old_logprobs=old_logprobs)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, advantages, *, aggregation="sequence-mean", **options):
        super().__init__(response_mask, advantages, aggregation=aggregation, **options)


class DrGRPO(PPO):
    """GRPO without its bias for length: each sequence's sum over one fixed length, and the mean over sequences.

    Takes what `PPO` does except `aggregation`, and: length, the number of tokens that a response may have at most.
    Advantages are meant to be `group_advantages(..., normalise_by_std=False)`.
    Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2 and listing 1.

        objective = DrGRPO(response_mask, group_advantages(rewards, 8, normalise_by_std=False), length=4096)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, advantages, *, length, cu_seqlens=None, **options):
        if not (length := read_number("length", length)) > 0:
            raise ValueError(f"length is {length:g}: give the largest number of tokens that a response may have")
        num_sequences = len(response_mask) if cu_seqlens is None else len(cu_seqlens) - 1
        super().__init__(
            response_mask, advantages, cu_seqlens=cu_seqlens, aggregation=length * num_sequences, **options
        )


class DAPO(PPO):
    """PPO's surrogate with a wider clip above than below, and the mean over all response tokens of the batch.

    Takes what `PPO` does. Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 8; the
    clip is section 4.1's. Filtering groups and shaping rewards, its other parts, come before this.

        objective = DAPO(response_mask, group_advantages(rewards, 16), old_logprobs=old_logprobs)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, advantages, *, clip=(0.2, 0.28), aggregation="token-mean", **options):
        super().__init__(response_mask, advantages, clip=clip, aggregation=aggregation, **options)


class CISPO(PolicyObjective):
    """REINFORCE with a clipped importance weight: sg(clip(r, 1 - low, 1 + high)) A log p; no token loses its gradient.

    Takes what `PolicyObjective` does, and clip, one number or (low, high); low = 1 is no lower bound, as in the paper,
    which gives no value for the upper one.
    MiniMax, "MiniMax-M1", eq. 4 and 5.

        objective = CISPO(response_mask, advantages, clip=(1.0, 4.0), old_logprobs=old_logprobs)
        loss = objective(logprobs, tree, entropy)
    """

    def __init__(self, response_mask, advantages, *, clip, **options):
        self.clip = Clip.read(clip)
        super().__init__(response_mask, advantages, **options)

    def surrogate(self, logp, log_ratio, advantages):
        return self.clip.ratio(log_ratio.detach()) * advantages * logp
