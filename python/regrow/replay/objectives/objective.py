"""What all ready-made objectives are: functions of a tree's log-probs that know their samples."""

import copy

import torch

from regrow.gather import replay_gather
from regrow.replay.objectives.terms import token_shares


class Objective:
    """An objective over the response tokens of a batch: minimise `objective(logprobs, tree, entropy)`.

    logprobs and entropy [T] on the tree's packed axis. A token that sequences share counts once for each of them, with
    that sequence's data. Subclasses say how the loss comes about.
    """

    def __init__(self, samples):
        self.samples = samples

    def where(self, tree):
        """bool [T]: the tokens that the objective looks at.

        Raises ValueError for a tree with other sequences, or one on another device than the data.

            weighed = objective.where(tree)
        """
        fan_out = self.samples.fan_out(tree)
        return torch.zeros_like(tree.subtree_end, dtype=torch.bool).index_fill(0, fan_out.axis, True)

    def select(self, sequences):
        """The part of this objective on those sequences, for the tree of these sequences in this order.

        sequences: int64 [M] or a list. Denominators stay the whole batch's, so that the losses and the gradients of
        parts add up to those of the whole. Raises ValueError for an index out of range or named twice.

            tree = PrefixTree.from_sequences([sequences[index] for index in part])
            loss = objective.select(part)(logprobs, tree, entropy)
        """
        part = copy.copy(self)
        part.samples = self.samples.select(sequences)
        return part

    def of_responses(self, values, tree):
        """values [T], log-probs or entropies -> [E], those of the response tokens, sequence after sequence."""
        axis = self.samples.fan_out(tree).axis
        if values.shape != tree.subtree_end.shape:
            raise ValueError(
                f"logprobs has shape {tuple(values.shape)}, the tree has {tree.num_tokens} tokens: give one for each"
            )
        return replay_gather(values, axis)


class TokenSum(Objective):
    """An objective that is a weighted sum over response tokens; subclasses have `token_losses`."""

    reads_entropy = False

    def __init__(self, samples, aggregation):
        shares = token_shares(aggregation, samples.num_responses)
        super().__init__(samples.with_token_data(share=shares.repeat_interleave(samples.lengths)))

    def __call__(self, logprobs, tree, entropy):
        everywhere = torch.arange(tree.num_tokens, device=tree.gather_index.device)
        return self.on_tokens(logprobs, tree, entropy, everywhere)

    def on_tokens(self, logprobs, tree, entropy, index):
        """The part of the loss at some tokens of the axis; the parts of a partition add up to the whole.

        logprobs and entropy [N] are those at the axis positions `index` int64 [N], in any order.

            loss = objective.on_tokens(logprobs[index], tree, entropy[index], index)
        """
        if logprobs.shape != index.shape:
            raise ValueError(
                f"logprobs has shape {tuple(logprobs.shape)}, for axis positions of shape {tuple(index.shape)}: "
                "give one for each"
            )
        entry, row = self.samples.fan_out(tree).at(index)
        data = self.samples.data_as(logprobs, entry)
        shown = replay_gather(logprobs, row)
        losses = self.token_losses(shown, replay_gather(entropy, row) if self.reads_entropy else None, data)
        return (data["share"] * losses).sum()

    def token_losses(self, logp, entropy, data):
        """[M]: the loss of each response token. logp, entropy and the tensors in `data`: [M]; entropy may be None."""
        raise NotImplementedError
