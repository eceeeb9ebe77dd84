"""`partition`: a batch of sequences as trees of limited size, balanced over data-parallel ranks."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from regrow.replay.balance import balance
from regrow.replay.leaf_runs import LeafRuns
from regrow.sequences import concatenate
from regrow.tree import PrefixTree

_HIDDEN_SIZE = 2048


@dataclass(frozen=True, eq=False)
class Part:
    """Sequences of a batch, and their tree: what one rank runs forward and backward at a time."""

    sequences: torch.Tensor  # int64 [num_sequences], ascending: places in the caller's list
    tree: PrefixTree  # of these sequences, in this order
    cost: float  # predicted, in units of one token without its attention


def partition(sequences, max_tokens, ranks=1, *, pair_cost=1 / (6 * _HIDDEN_SIZE)):
    """Cuts a batch into trees of at most `max_tokens` packed tokens -> for each rank a list of `Part`s.

    Each sequence is in exactly one part. So where a loss is a sum over sequences, and what divides it (the number of
    sequences, or of tokens) is taken from the whole batch, the parts' gradients add up to the whole's: ranks are to sum
    gradients, not to average them.

    `sequences` are those of `PrefixTree.from_sequences`. A part is a run of neighbouring leaves, siblings ordered from
    the largest subtree to the smallest, so only the path at a cut is computed twice. The order of the sequences does
    not matter to the costs. The slowest rank is made to cost as little as possible, duplicates included; even one group
    is split over ranks, its prompt computed on each, if that helps. Differences below 1 % are given up for fewer parts.
    The search is a heuristic: see `balance`.

    A part's cost is its packed tokens + `pair_cost` * the (query, key) pairs of their attention. In a transformer of
    hidden size H and L layers a token takes about 2 * 12 H^2 L FLOPs and a pair 4 H L, hence 1 / (6 H); the default is
    for H = 2048. Set it higher where attention runs at a lower rate than matmuls, and 0 where it does not count.

    Ranks may get different numbers of parts, and none if there are too few sequences. Where all must run as many passes
    (FSDP; DDP unless under no_sync), a rank makes up for it with passes over `PrefixTree.from_sequences([[0]])`, their
    loss times 0. All ranks compute the same partition, so they know how many.

    Raises ValueError for no sequences, a sequence longer than `max_tokens`, max_tokens or ranks below 1, a pair_cost
    that is negative or not finite, and what `from_sequences` refuses.

    >>> [[part.sequences.tolist() for part in mine] for mine in partition([[5, 6], [7, 8, 9], [5, 6, 4]], 3, ranks=2)]
    [[[0, 2]], [[1]]]
    """
    _check_limits(max_tokens, ranks, pair_cost)
    tokens, cu_seqlens = concatenate(sequences)
    tree = PrefixTree.from_sequences((tokens, cu_seqlens))
    _check_lengths(np.diff(cu_seqlens), max_tokens)

    leaf_position, depth = _largest_siblings_first(tree)
    order = np.argsort(leaf_position, kind="stable")
    runs = LeafRuns.of(leaf_position[order], depth, max_tokens, pair_cost)
    return [
        [_part(tokens, cu_seqlens, np.sort(order[start:stop]), pair_cost) for start, stop in mine]
        for mine in balance(runs, ranks)
    ]


@torch.inference_mode(False)  # an index that autograd may save, wherever it is made
def _part(tokens, cu_seqlens, chosen, pair_cost):
    pieces = [tokens[cu_seqlens[sequence] : cu_seqlens[sequence + 1]] for sequence in chosen]
    chosen_cu_seqlens = np.append(0, np.cumsum([len(piece) for piece in pieces]))
    tree = PrefixTree.from_sequences((np.concatenate(pieces), chosen_cu_seqlens))
    packed_pairs, _ = tree.attention_pairs()
    return Part(torch.from_numpy(chosen), tree, float(tree.num_tokens + pair_cost * packed_pairs))


def _largest_siblings_first(tree):
    """The tree on an axis that does not depend on the order of the sequences.

    -> int64 [num_sequences]: where on that axis each sequence ends; int64 [T]: the depth of its tokens. Siblings stand
    by the size of their subtrees, large ones first, which packs better; of equals, the lower first token is first.
    """
    start, length = tree.node_start[:-1].numpy(), tree.node_start.diff().numpy()
    subtree_size = tree.subtree_end.numpy()[start] - start
    by_size = np.lexsort((tree.tokens.numpy()[start], -subtree_size))
    place = np.empty_like(by_size)
    place[by_size] = np.arange(len(by_size))
    parent = tree.parent.numpy()[by_size]
    sorted_tree = PrefixTree.from_nodes(np.where(parent < 0, -1, place[parent]), length[by_size])

    sorted_start = sorted_tree.node_start.numpy()[sorted_tree.node_of_input.numpy()[place]]
    last = tree.gather_index.numpy()[tree.cu_seqlens[1:].numpy() - 1]
    node = np.searchsorted(start, last, side="right") - 1
    return sorted_start[node] + last - start[node], sorted_tree.position_ids.numpy()


def _check_limits(max_tokens, ranks, pair_cost):
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: allow as many tokens as the longest sequence has, at least")
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}: give the number of data-parallel ranks, at least 1")
    if not 0 <= pair_cost < math.inf:
        raise ValueError(
            f"pair_cost is {pair_cost}: give what a pair costs in units of a token, 1 / (6 * hidden size) say"
        )


def _check_lengths(lengths, max_tokens):
    longest = int(lengths.argmax())
    if lengths[longest] > max_tokens:
        raise ValueError(
            f"sequence {longest} has {lengths[longest]} tokens, max_tokens is {max_tokens}: "
            f"shorten the sequence, or allow {lengths[longest]}"
        )
