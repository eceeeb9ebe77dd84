"""The response tokens of a batch with their data, and where a tree's axis shows them."""

from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch

from regrow.gather import replay_scatter
from regrow.replay.objectives.inputs import read_indices, read_mask, read_sequence_data, read_token_data


def ranges(start, count):
    """start, count int64 [N] -> (value, owner) int64 [count.sum()].

    `value` runs through start[i], ..., start[i] + count[i] - 1 for one i after the other, `owner` holds that i.
    """
    owner = torch.repeat_interleave(count)
    before = count.cumsum(0) - count
    return (start - before)[owner] + torch.arange(owner.size(0), device=owner.device), owner


@dataclass(frozen=True, eq=False)
class FanOut:
    """Which of E response tokens each of the T positions of a token axis shows."""

    axis: torch.Tensor  # int64 [E]: where each response token stands on the axis
    order: torch.Tensor  # int64 [E]: the response tokens by axis position
    start: torch.Tensor  # int64 [T + 1]: position t shows order[start[t]:start[t + 1]]

    @classmethod
    def build(cls, axis, num_tokens):
        count = torch.bincount(axis, minlength=num_tokens)
        return cls(axis, axis.argsort(stable=True), torch.nn.functional.pad(count.cumsum(0), (1, 0)))

    def at(self, index):
        """index int64 [N], axis positions -> (entry, row) int64 [M]: index[row] shows response token `entry`."""
        start = self.start[index]
        place, row = ranges(start, self.start[index + 1] - start)
        return self.order[place], row


@dataclass(frozen=True, eq=False)
class Samples:
    """The E tokens that the policy produced, sequence after sequence, and the data of each.

    A token that sequences share is there once for each, with each one's data.
    """

    lengths: torch.Tensor  # int64 [num_sequences]: tokens of each whole sequence
    sequence: torch.Tensor  # int64 [E], ascending
    position: torch.Tensor  # int64 [E]: where in its sequence the token stands
    token_data: dict  # name: [E]
    sequence_data: dict  # name: [num_sequences]
    fan_outs: WeakKeyDictionary = field(default_factory=WeakKeyDictionary)  # of trees seen; neither copied nor pickled

    @property
    def num_sequences(self):
        return self.lengths.size(0)

    @property
    def num_responses(self):
        """int64 [num_sequences]: response tokens of each sequence."""
        return torch.bincount(self.sequence, minlength=self.num_sequences)

    @classmethod
    @torch.inference_mode(False)
    def read(cls, response_mask, cu_seqlens):
        """From the mask as users give it, without data. Raises ValueError as `read_mask` does."""
        mask, lengths = read_mask(response_mask, cu_seqlens)
        place = mask.nonzero()[:, 0]
        sequence = torch.repeat_interleave(lengths)[place]
        start = lengths.cumsum(0) - lengths
        return cls(lengths, sequence, place - start[sequence], token_data={}, sequence_data={})

    @torch.inference_mode(False)
    def with_token_data(self, **values):
        """The same tokens with values as users give them, for every token of every sequence; None is left out.

        Raises ValueError as `read_token_data` does, and for NaN and inf at a response token.
        """
        start = self.lengths.cumsum(0) - self.lengths
        place = start[self.sequence] + self.position
        token_data = dict(self.token_data)
        for name, given in values.items():
            if given is None:
                continue
            token_data[name] = read_token_data(name, given, self.lengths)[place]
            wrong = (~token_data[name].isfinite()).nonzero()
            if wrong.numel():
                entry = int(wrong[0])
                raise ValueError(
                    f"{name} is {token_data[name][entry].item()} at token {int(self.position[entry])} of sequence "
                    f"{int(self.sequence[entry])}: give finite numbers at response tokens, or take it from the mask"
                )
        return replace(self, token_data=token_data)

    @torch.inference_mode(False)
    def with_sequence_data(self, **values):
        """The same tokens with one number per sequence. Raises ValueError as `read_sequence_data` does."""
        read = {name: read_sequence_data(name, given, self.lengths) for name, given in values.items()}
        return replace(self, sequence_data=self.sequence_data | read)

    def data_as(self, like, entry=None):
        """{name: [E] or [M]}: the token data in the dtype of `like`, of all or of those at `entry` int64 [M]."""
        whole = slice(None) if entry is None else entry
        return {name: values[whole].to(like.dtype) for name, values in self.token_data.items()}

    def sum_of_sequences(self, values):
        """values [E] -> [num_sequences], differentiable and the same bits on every run."""
        return replay_scatter(values, self.sequence, self.num_sequences)

    def new_index(self, sequences):
        """int64 [num_sequences]: where `select(sequences)` has each sequence, -1 for those that it leaves out.

        Raises ValueError for an index out of range and for one that is there twice.
        """
        sequences = read_indices("sequences", sequences, self.num_sequences, self.lengths.device)
        counts = torch.bincount(sequences)
        if (counts > 1).any():
            twice = int((counts > 1).nonzero()[0])
            raise ValueError(f"sequences has {twice} more than once, which would count it again: name each once")
        places = torch.arange(sequences.numel(), device=sequences.device)
        return torch.full_like(self.lengths, -1).index_copy(0, sequences, places)

    @torch.inference_mode(False)
    def select(self, sequences):
        """The samples of these sequences, in this order. Raises ValueError as `new_index` does."""
        new_index = self.new_index(sequences)
        sequences = new_index.argsort()[(new_index < 0).sum() :]
        count = self.num_responses
        entry, owner = ranges((count.cumsum(0) - count)[sequences], count[sequences])
        return Samples(
            lengths=self.lengths[sequences],
            sequence=owner,
            position=self.position[entry],
            token_data={name: values[entry] for name, values in self.token_data.items()},
            sequence_data={name: values[sequences] for name, values in self.sequence_data.items()},
        )

    @torch.inference_mode(False)
    def only(self, wanted):
        """The samples with the response tokens of those sequences alone; `wanted` bool [num_sequences]."""
        keep = wanted[self.sequence]
        return replace(
            self,
            sequence=self.sequence[keep],
            position=self.position[keep],
            token_data={name: values[keep] for name, values in self.token_data.items()},
            fan_outs=WeakKeyDictionary(),
        )

    def fan_out(self, tree):
        """The `FanOut` of a tree, built once for each. Raises ValueError for a tree of other sequences or elsewhere."""
        if tree not in self.fan_outs:
            with torch.inference_mode(False):
                self._check(tree)
                axis = tree.gather_index[tree.cu_seqlens[:-1][self.sequence] + self.position]
                self.fan_outs[tree] = FanOut.build(axis, tree.num_tokens)
        return self.fan_outs[tree]

    def _check(self, tree):
        if tree.gather_index.device != self.lengths.device:
            raise ValueError(
                f"the objective's data are on {self.lengths.device}, the tree on {tree.gather_index.device}: "
                f"give the objective data on {tree.gather_index.device}, or use tree.to('{self.lengths.device}')"
            )
        if tree.num_sequences != self.num_sequences:
            raise ValueError(
                f"the objective has {self.num_sequences} sequences, the tree {tree.num_sequences}: "
                "for a tree of a part of the batch use objective.select(sequences)"
            )
        lengths = tree.cu_seqlens.diff()
        differs = lengths != self.lengths
        if differs.any():
            sequence = int(differs.nonzero()[0])
            raise ValueError(
                f"sequence {sequence} has {int(self.lengths[sequence])} tokens in the objective and "
                f"{int(lengths[sequence])} in the tree: give both the same sequences in the same order, without padding"
            )

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "fan_outs"}

    def __setstate__(self, state):
        self.__dict__.update(state, fan_outs=WeakKeyDictionary())
