"""DPO: pairs of responses, of which one is preferred."""

import torch
from torch.nn.functional import logsigmoid

from regrow.gather import replay_gather
from regrow.replay.objectives.inputs import read_indices, read_number
from regrow.replay.objectives.objective import Objective
from regrow.replay.objectives.samples import Samples


class DPO(Objective):
    """Direct preference optimisation: the mean over pairs of -log sigmoid(beta (chosen's log-ratio - rejected's)).

    A log-ratio is the sum over response tokens of log policy - log reference, or with `length_normalised` their mean.
    No sum over tokens, so the replay engine computes all log-probs first.
    response_mask, reference_logprobs: as for `PolicyObjective`; chosen, rejected: indices of sequences, [num_pairs]
    each; a sequence may be in several pairs, and one in none is not looked at. label_smoothing in [0, 0.5]: the
    probability that a pair's label is wrong.
    Raises ValueError for data that do not fit each other, NaN or inf at a response token of a pair, indices out of
    range, a pair of a sequence with itself, no pairs, and options out of range.
    Rafailov et al., "Direct Preference Optimization", eq. 7; smoothing: Mitchell, "A note on DPO with noisy
    preferences"; normalised by length: Lambert et al., "Tulu 3".

        objective = DPO(response_mask, reference_logprobs, chosen=[0, 2], rejected=[1, 3])
        loss = objective(logprobs, tree, entropy)
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        response_mask,
        reference_logprobs,
        *,
        chosen,
        rejected,
        cu_seqlens=None,
        beta=0.1,
        label_smoothing=0.0,
        length_normalised=False,
    ):
        self.beta = read_number("beta", beta, 0)
        self.label_smoothing = read_number("label_smoothing", label_smoothing, 0, 0.5)
        self.length_normalised = length_normalised
        samples = Samples.read(response_mask, cu_seqlens)
        self.chosen, self.rejected = (
            read_indices(name, indices, samples.num_sequences, samples.lengths.device)
            for name, indices in (("chosen", chosen), ("rejected", rejected))
        )
        _check_pairs(self.chosen, self.rejected)
        self.num_pairs = self.chosen.numel()  # of the whole batch, also in its parts
        paired = torch.zeros_like(samples.lengths, dtype=torch.bool)
        paired[self.chosen] = paired[self.rejected] = True
        super().__init__(samples.only(paired).with_token_data(reference_logprobs=reference_logprobs))

    def __call__(self, logprobs, tree, entropy):
        samples = self.samples
        logp = self.of_responses(logprobs, tree)
        log_ratio = samples.sum_of_sequences(logp - samples.data_as(logprobs)["reference_logprobs"])
        if self.length_normalised:
            log_ratio = log_ratio / samples.num_responses.clamp(min=1)

        margin = self.beta * (replay_gather(log_ratio, self.chosen) - replay_gather(log_ratio, self.rejected))
        smoothing = self.label_smoothing
        losses = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        return losses.sum() / self.num_pairs

    @torch.inference_mode(False)
    def select(self, sequences):
        """As `Objective.select`; raises ValueError, too, for one sequence of a pair without the other."""
        part = super().select(sequences)
        new_index = self.samples.new_index(sequences)
        chosen, rejected = new_index[self.chosen], new_index[self.rejected]
        half = (chosen < 0) != (rejected < 0)
        if half.any():
            pair = int(half.nonzero()[0])
            raise ValueError(
                f"sequences has half of pair {pair}, sequences {int(self.chosen[pair])} and "
                f"{int(self.rejected[pair])}: keep pairs together"
            )
        part.chosen, part.rejected = chosen[chosen >= 0], rejected[chosen >= 0]
        return part


def _check_pairs(chosen, rejected):
    if chosen.numel() != rejected.numel() or not chosen.numel():
        raise ValueError(
            f"chosen has {chosen.numel()} sequences, rejected {rejected.numel()}: give one of each for every pair"
        )
    same = chosen == rejected
    if same.any():
        pair = int(same.nonzero()[0])
        raise ValueError(f"pair {pair} is sequence {int(chosen[pair])} against itself: give two sequences")
