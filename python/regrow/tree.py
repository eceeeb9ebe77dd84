"""`PrefixTree`: sequences that share beginnings, on one token axis (docs/tree.md)."""

from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from regrow._load import _C
from regrow.sequences import concatenate, depad, to_int64

_REDUCTIONS = ("first", "sum", "mean")


@contextmanager
def _outliving_modes():
    """Tensors made here are plain ones: trees outlive the inference_mode or FakeTensorMode in which they are made."""
    with _disable_current_modes(), torch.inference_mode(False):
        yield


@dataclass(frozen=True, eq=False, repr=False)
class PrefixTree:
    """A forest of token sequences on one axis of T tokens, in depth-first preorder.

    Query `q` sees key `k` if and only if `k <= q < subtree_end[k]`. Made by `from_sequences`, `from_padded` or
    `from_nodes`.

    >>> tree = PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])
    >>> tree.num_tokens, tree.position_ids.tolist()
    (5, [0, 1, 2, 2, 3])
    """

    parent: torch.Tensor  # int64 [num_nodes]: the node above, -1 at roots
    node_start: torch.Tensor  # int64 [num_nodes + 1]: axis position of each node's first token
    subtree_end: torch.Tensor  # int32 [T]: one past the last token that has this one on its path
    position_ids: torch.Tensor  # int64 [T]: depth on the path
    parent_index: torch.Tensor  # int64 [T]: axis position of the token before it on its path, -1 at roots
    gather_index: torch.Tensor  # int64 [cu_seqlens[-1]]: axis positions of every sequence's tokens
    cu_seqlens: torch.Tensor  # int64 [num_sequences + 1]
    host_subtree_end: torch.Tensor  # what planning reads: always on the CPU
    host_position_ids: torch.Tensor
    tokens: torch.Tensor | None = None  # int64 [T]
    node_of_input: torch.Tensor | None = None  # int64 [num_nodes]: where from_nodes put the caller's nodes
    padded_index: torch.Tensor | None = None  # int64 [B, L]: axis position of each place of from_padded, -1 at padding
    plans: dict = field(default_factory=dict)  # a cache of this object: neither copied nor pickled

    @classmethod
    @_outliving_modes()
    def from_sequences(cls, sequences):
        """The radix trie of the sequences, siblings in order of first appearance, on the CPU.

        `sequences` is a list of 1-D integer tensors, arrays or lists, or a tuple `(tokens, cu_seqlens)` of 1-D integer
        tensors. Equal sequences, and one that is a prefix of another, are fine. Raises ValueError for no sequences, an
        empty one, a negative token, anything but integers in one dimension, and more than 2**31 - 1 packed tokens.

        >>> PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]]).gather_index.tolist()
        [0, 1, 2, 0, 1, 3, 4]
        """
        return cls._from_arrays(_C.tree_from_sequences(*concatenate(sequences)))

    @classmethod
    @_outliving_modes()
    def from_padded(cls, ids, attention_mask):
        """The radix trie of the rows of a padded batch, on the CPU; `to_padded` goes back to the batch.

        `ids` [B, L] integers; `attention_mask` [B, L] of 0 and 1, or booleans. A row's sequence is its tokens under a
        1, in their order, wherever its zeros stand: left, right, both, or between. Positions count real tokens only, as
        `generate` counts them. Raises ValueError for other shapes, another mask (a 4-D or additive one, say), a row
        without real tokens, and what `from_sequences` refuses.

        >>> tree = PrefixTree.from_padded(torch.tensor([[0, 5, 6], [5, 7, 8]]), torch.tensor([[0, 1, 1], [1, 1, 1]]))
        >>> tree.padded_index
        tensor([[-1,  0,  1],
                [ 0,  2,  3]])
        """
        tokens, cu_seqlens, real = depad(ids, attention_mask)
        tree = cls.from_sequences((tokens, cu_seqlens))
        return replace(tree, padded_index=_at_real_places(real, tree.gather_index))

    @classmethod
    @_outliving_modes()
    def from_nodes(cls, parent, lengths, tokens=None):
        """The tree of these nodes, renumbered to preorder with siblings in the given order, on the CPU.

        `parent` [num_nodes] holds -1 at roots and may name a later node; `lengths` [num_nodes]; `tokens`, if any, are
        the nodes' tokens in the order of the nodes. Each leaf is one sequence, in the order of the leaves. Raises
        ValueError for a cycle, an unknown parent, a length below 1, a wrong number of tokens, a negative token.

        >>> PrefixTree.from_nodes(parent=[-1, 0, 0], lengths=[4, 2, 3]).cu_seqlens.tolist()
        [0, 6, 13]
        """
        remedy = "give a flat list, array or tensor of integers"
        if tokens is not None:
            tokens = to_int64(tokens, "tokens", remedy)
        parent, lengths = to_int64(parent, "parent", remedy), to_int64(lengths, "lengths", remedy)
        return cls._from_arrays(_C.tree_from_nodes(parent, lengths, tokens))

    @classmethod
    def _from_arrays(cls, arrays):
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
        host = {f"host_{name}": tensors[name] for name in ("subtree_end", "position_ids")}
        return cls(**tensors, **host)

    @property
    def num_tokens(self):
        return self.subtree_end.size(0)

    @property
    def num_nodes(self):
        return self.parent.size(0)

    @property
    def num_sequences(self):
        return self.cu_seqlens.size(0) - 1

    def unpack(self, x):
        """x [T, ...] on the axis -> [cu_seqlens[-1], ...], every sequence whole and end to end.

        Differentiable: gradients of shared tokens add. Raises ValueError if x has another number of rows.

        >>> tree.unpack(tree.tokens).split(tree.cu_seqlens.diff().tolist())
        (tensor([5, 6, 7]), tensor([5, 6, 8, 9]))
        """
        _check_rows(x, self.num_tokens, "the tree", "unpack takes one row per token of the axis")
        return x.index_select(0, self.gather_index)

    def to_padded(self, x, fill=0):
        """x [T, ...] on the axis -> [B, L, ...]: the batch that `from_padded` was given, `fill` at its padding.

        A tree made otherwise gives one row per sequence, padded on the right. Differentiable as `unpack` is; padding
        has no gradient. Raises ValueError if x has another number of rows.

        >>> PrefixTree.from_sequences([[5, 6], [5, 7, 8]]).to_padded(torch.tensor([1.0, 2, 3, 4]), fill=-1)
        tensor([[ 1.,  2., -1.],
                [ 1.,  3.,  4.]])
        """
        _check_rows(x, self.num_tokens, "the tree", "to_padded takes one row per token of the axis")
        index = self.padded_index
        if index is None:
            lengths = self.cu_seqlens.diff()
            places = torch.arange(int(lengths.max()) if self.num_sequences else 0, device=lengths.device)
            index = _at_real_places(places < lengths[:, None], self.gather_index)
        values = x.index_select(0, index.clamp(min=0).flatten()).view(*index.shape, *x.shape[1:])
        return values.masked_fill((index < 0).view(*index.shape, *[1] * (x.dim() - 1)), fill)

    def pack(self, x, reduce="first"):
        """x [cu_seqlens[-1], ...], the sequences end to end -> [T, ...]; what they share is reduced.

        "first" takes the value of the first sequence that has the token, and gradients flow to that one only; "sum" and
        "mean" are over all sequences that have it. Half-precision sums are made in fp32. Raises ValueError for another
        number of rows, an unknown reduction, and the mean of integers.

        >>> tree.pack(torch.tensor([1.0, 2, 3, 5, 6, 7, 8]), reduce="mean")
        tensor([3., 4., 3., 7., 8.])
        """
        num_dense = self.gather_index.size(0)
        _check_rows(x, num_dense, "cu_seqlens", "pack takes one row per token of every sequence")
        if reduce not in _REDUCTIONS:
            raise ValueError(f"reduce is {reduce!r}: use one of {', '.join(map(repr, _REDUCTIONS))}")
        if reduce == "first":
            places = torch.arange(num_dense, device=x.device)
            first = places.new_full((self.num_tokens,), num_dense)
            return x.index_select(0, first.scatter_reduce(0, self.gather_index, places, "amin"))

        if reduce == "mean" and not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"the mean of {x.dtype} is no {x.dtype}: convert x to a floating-point type first")
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        packed = wide.new_zeros(self.num_tokens, *x.shape[1:]).index_add(0, self.gather_index, wide)
        if reduce == "mean":
            ones = torch.ones_like(self.gather_index)
            counts = ones.new_zeros(self.num_tokens).index_add(0, self.gather_index, ones)
            packed = packed / counts.view(-1, *[1] * (x.dim() - 1))
        return packed.to(x.dtype)

    def to(self, device):
        """The same tree with its tensors on `device`; the host copies stay, the plans do not.

        >>> tree.to("cuda").host_subtree_end.device
        device(type='cpu')
        """
        device = torch.device(device)
        if device == self.subtree_end.device:
            return self
        with _outliving_modes():
            moved = {name: tensor.to(device) for name, tensor in self._tensors() if not name.startswith("host_")}
        if device.type == "cpu":
            moved |= {name: getattr(self, f"host_{name}") for name in ("subtree_end", "position_ids")}
        return replace(self, **moved, plans={})

    def _tensors(self):
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self))
        return [(name, value) for name, value in values if isinstance(value, torch.Tensor)]

    def __getstate__(self):
        return self.__dict__ | {"plans": {}}

    def __setstate__(self, state):
        self.__dict__.update(state)
        with _outliving_modes():  # what loads under inference_mode is an inference tensor
            lasting = {id(t): t.clone() if t.is_inference() else t for _, t in self._tensors()}
        self.__dict__.update((name, lasting[id(tensor)]) for name, tensor in self._tensors())

    def attention_pairs(self):
        """The (query, key) pairs that causal attention visits, as `(packed, dense)`: on this axis, and per sequence.

        >>> tree.attention_pairs()
        (13, 16)
        """
        lengths = self.cu_seqlens.cpu().diff()
        return int((self.host_position_ids + 1).sum()), int((lengths * (lengths + 1) // 2).sum())

    def __repr__(self):
        packed_pairs, dense_pairs = self.attention_pairs()
        tokens = _saving(self.num_tokens, self.gather_index.size(0))
        device = "" if self.subtree_end.device.type == "cpu" else f", device='{self.subtree_end.device}'"
        return (
            f"PrefixTree({self.num_sequences:,} sequences, {self.num_nodes:,} nodes; tokens: {tokens}; "
            f"attention pairs: {_saving(packed_pairs, dense_pairs)}{device})"
        )

    def plot(self, path):
        """Draws the tree and its attention mask into the PNG file `path`.

        Large trees are drawn at the resolution of the picture. Raises ImportError without matplotlib, which
        `pip install regrow[plot]` brings.

        >>> tree.plot("tree.png")
        """
        from regrow.plot_tree import plot

        plot(self, path)


def _at_real_places(real, gather_index):
    """real [B,L] -> int64 [B,L]: the entries of gather_index in their order where `real`, -1 elsewhere."""
    return gather_index.new_full(real.shape, -1).masked_scatter_(real, gather_index)


def _saving(packed, dense):
    return f"{packed:,} packed of {dense:,} dense" + (f" ({dense / packed:.2f}x)" if packed else "")


def _check_rows(x, rows, owner, remedy):
    if x.dim() == 0 or x.size(0) != rows:
        raise ValueError(f"x has shape {tuple(x.shape)}, {owner} has {rows} tokens: {remedy}")
