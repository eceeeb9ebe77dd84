"""Every objective's formula, written for one sequence after the other with plain operations of torch."""

from dataclasses import dataclass

import torch


@dataclass
class Sequence:
    """What the formulas see of one sequence: its response tokens' values, [n] each, and its advantage."""

    logp: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    entropy: torch.Tensor
    weights: torch.Tensor
    token_advantages: torch.Tensor
    advantage: torch.Tensor


def each_sequence(batch, logprobs, entropy, on_policy):
    """Every sequence of the batch by itself, without the tree's help beyond where its tokens are."""
    result = []
    for index, own in enumerate(batch.mask):
        first = int(batch.tree.cu_seqlens[index])
        places = [int(batch.tree.gather_index[first + token]) for token in range(len(own)) if own[token]]
        logp = logprobs[places]
        result.append(
            Sequence(
                logp=logp,
                old=logp.detach() if on_policy else batch.old[index][own],
                reference=batch.reference[index][own],
                entropy=entropy[places],
                weights=batch.weights[index][own],
                token_advantages=batch.token_advantages[index][own],
                advantage=batch.advantages[index],
            )
        )
    return result


def mean_over_tokens(losses):
    return torch.cat(losses).sum() / max(sum(len(loss) for loss in losses), 1)


def mean_over_sequences(losses):
    return sum(loss.sum() / max(len(loss), 1) for loss in losses) / len(losses)


def sum_over_sequences(losses):
    return sum(loss.sum() for loss in losses) / len(losses)


def divided_by(number):
    return lambda losses: sum(loss.sum() for loss in losses) / number


def clipped(ratio, advantage, low, high):
    """PPO, eq. 7, to the letter."""
    return torch.min(ratio * advantage, torch.clip(ratio, 1 - low, 1 + high) * advantage)


def token_ratio(s):
    return torch.exp(s.logp) / torch.exp(s.old)


def k1(s):
    return s.logp - s.reference


def k2(s):
    return 0.5 * (s.reference - s.logp) ** 2


def k3(s):
    return torch.exp(s.reference) / torch.exp(s.logp) - (s.reference - s.logp) - 1


def ppo(s):
    return -clipped(token_ratio(s), s.advantage, 0.2, 0.2)


def dense_ppo(s):
    return -clipped(token_ratio(s), s.token_advantages, 0.3, 0.1)


def dual_clip(s):
    inner = clipped(token_ratio(s), s.advantage, 0.2, 0.2)
    return -torch.where(s.advantage < 0, torch.max(inner, 1.5 * s.advantage), inner)


def dapo(s):
    return -clipped(token_ratio(s), s.advantage, 0.2, 0.28)


def cispo(s):
    return -torch.clip(token_ratio(s), 0.7, 1.4).detach() * s.advantage * s.logp


def upper_cispo(s):
    return -torch.clip(token_ratio(s), max=1.4).detach() * s.advantage * s.logp


def gspo(low, high):
    def loss(sequences):
        total = 0.0
        for s in sequences:
            if len(s.logp):
                ratio = torch.prod(token_ratio(s)) ** (1 / len(s.logp))
                total = total - clipped(ratio, s.advantage, low, high)
        return total / len(sequences)

    return loss


def dpo(chosen, rejected, beta=0.1, smoothing=0.0, normalised=False):
    def log_ratio(s):
        total = (s.logp - s.reference).sum()
        return total / max(len(s.logp), 1) if normalised else total

    def loss(sequences):
        total = 0.0
        for winner, loser in zip(chosen, rejected, strict=True):
            probability = torch.sigmoid(beta * (log_ratio(sequences[winner]) - log_ratio(sequences[loser])))
            total = total - (1 - smoothing) * torch.log(probability) - smoothing * torch.log(1 - probability)
        return total / len(chosen)

    return loss


def of_tokens(loss, aggregate):
    return lambda sequences: aggregate([loss(s) for s in sequences])


def with_penalties(loss, kl, kl_coefficient, entropy_coefficient):
    return lambda s: loss(s) + kl_coefficient * kl(s) - entropy_coefficient * s.entropy
