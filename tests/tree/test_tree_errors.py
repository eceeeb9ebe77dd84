"""Every refusal of the constructors names the value and the remedy."""

import re

import numpy as np
import pytest
import torch

from regrow.tree import PrefixTree

OK = [5, 6]
FLAT = "give each sequence as one flat list, array or tensor of integer token ids"


@pytest.mark.parametrize(
    ("sequences", "text"),
    [
        ([], "there are no sequences: pass at least one, or make the empty tree by from_nodes([], [])"),
        ([OK, []], "sequence 1 is empty: leave it out, or give it a first token (BOS, say)"),
        ([torch.tensor(OK), torch.tensor([])], "sequence 1 is empty"),
        ([np.array(OK), np.array([])], "sequence 1 is empty"),
        ([OK, [5, 6, -100]], "sequence 1 has the negative token -100 at position 2: cut padding and label masks off"),
        ([[-1]], "sequence 0 has the negative token -1 at position 0"),
        ([torch.tensor(OK), torch.tensor([5, 7, -3])], "sequence 1 has the negative token -3 at position 2"),
        ([OK, [5, 1.5]], "sequence 1 has 1.5 at position 1, which is no 64-bit integer: give token ids as integers"),
        ([OK, [True]], "sequence 1 has True at position 0, which is no 64-bit integer"),
        ([OK, [2**63]], "sequence 1 has 9223372036854775808 at position 0, which is no 64-bit integer"),
        ([OK, [10**5000]], "sequence 1 has a value of type int at position 0, which is no 64-bit integer"),
        ([OK, [torch.tensor(True), 2]], "sequence 1 has tensor(True) at position 0, which is no 64-bit integer"),
        ([OK, [torch.tensor([5])]], "sequence 1 has tensor([5]) at position 0, which is no 64-bit integer"),
        ([OK, [np.ma.array(5, mask=True)]], "at position 0, which is no 64-bit integer"),
        ([OK, [np.timedelta64(5, "s")]], "at position 0, which is no 64-bit integer"),
        ([OK, range(3), [True, 2]], f"sequence 2 has True at position 0, which is no integer: {FLAT}"),
        ([OK, range(3), [2, torch.tensor(True)]], "sequence 2 has tensor(True) at position 1, which is no integer"),
        ([OK, range(3), [2**63]], "sequence 2 has 9223372036854775808 at position 0, too large for int64"),
        ([OK, range(3), [2, 2**63]], "sequence 2 has 9223372036854775808 at position 1, too large for int64"),
        ([OK, range(3), [2, 10**5000]], "sequence 2 has an integer of 16610 bits at position 1, too large for int64"),
        ([np.array(OK), np.uint64([1, 2**63 + 5])], "sequence 1 has 9223372036854775813 at position 1, too large for"),
        (
            [torch.tensor([2**63 + 5], dtype=torch.uint64)],
            "sequence 0 has 9223372036854775813 at position 0, too large",
        ),
        (
            [np.ma.array(OK, mask=[0, 1])],
            "sequence 0 is a masked array, whose mask a tree cannot keep: pass .compressed",
        ),
        ([np.array(OK, dtype="timedelta64[s]")], "sequence 0 holds timedelta64[s], not integers"),
        ([torch.tensor(OK), torch.tensor(OK).to_sparse()], "sequence 1 has layout torch.sparse_coo"),
        ([[OK]], "sequence 0 has [5, 6] at position 0, which is no 64-bit integer"),
        ([OK, "ab"], "sequence 1 has 0 dimensions"),
        ([OK, 7], "sequence 1 has 0 dimensions"),
        ([OK, range(3), [[1], [1, 2]]], f"sequence 2 is ragged: {FLAT}"),
        ([torch.tensor(OK), torch.tensor([1.0])], f"sequence 1 holds torch.float32, not integers: {FLAT}"),
        ([torch.tensor([1.0]).bfloat16()], "sequence 0 holds torch.bfloat16, not integers"),
        ([torch.tensor(OK), torch.tensor([True])], "sequence 1 holds torch.bool, not integers"),
        ([np.array(OK), np.array([0.5])], "sequence 1 holds float64, not integers"),
        ([np.array(OK), np.array([True])], "sequence 1 holds bool, not integers"),
        ([torch.tensor(OK), torch.tensor([OK])], f"sequence 1 has 2 dimensions: {FLAT}"),
        ([np.array(OK), np.array([OK])], "sequence 1 has 2 dimensions"),
        (torch.tensor([OK, OK]), "sequences is one array of shape (2, 2): cut padding off and pass a list"),
        ("ab", "sequences is a str: pass a list of sequences, or (tokens, cu_seqlens)"),
        ((OK, OK, OK), "a tuple of 3: give (tokens, cu_seqlens) as two 1-D integer tensors, or a list of sequences"),
    ],
)
def test_bad_sequences(sequences, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        PrefixTree.from_sequences(sequences)


class Cuts:
    """An index that shortens a list while the list is read."""

    def __init__(self, victim):
        self.victim = victim

    def __index__(self):
        self.victim.clear()
        return 5


def test_lists_that_change_while_they_are_read():
    sequence = []
    sequence += [Cuts(sequence), *range(1000, 50_000)]
    with pytest.raises(ValueError, match="sequence 0 changed during iteration, from 49001 tokens to 0: leave it alone"):
        PrefixTree.from_sequences([sequence])
    batch = []
    batch += [[Cuts(batch)], *([token] for token in range(1000))]
    assert PrefixTree.from_sequences(batch).num_tokens == 1000  # 5 and the first 1,000 tokens, 5 among them


def test_interrupts_pass():
    class Interrupts:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PrefixTree.from_sequences([[Interrupts()]])


# torch promotes no pair of these, and cannot compare some of them.
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_tensors_mix_with_others(dtype):
    tree = PrefixTree.from_sequences([torch.tensor(OK, dtype=dtype), torch.tensor(OK, dtype=torch.int32)])
    assert tree.tokens.tolist() == OK
    ids, mask = torch.tensor([OK], dtype=dtype), torch.tensor([[0, 1]], dtype=dtype)
    assert PrefixTree.from_padded(ids, mask).tokens.tolist() == [6]


@pytest.mark.parametrize(
    ("tokens", "cu_seqlens", "text"),
    [
        ([1, 2], [1, 2], "cu_seqlens starts at 1, so sequence 0 misses tokens: it must start at 0"),
        ([1, 2], [0, 2, 1], "cu_seqlens decreases from 2 to 1 at sequence 1: it must hold the running sum"),
        ([1, 2], [0, 1], "cu_seqlens ends at 1 (sequence 0), but there are 2 tokens: it must end at their number"),
        ([1, 2], [0, 1, 3], "cu_seqlens ends at 3 (sequence 1), but there are 2 tokens"),
        ([1, 2], [0, 1, 1, 2], "sequence 1 is empty"),
        ([], [0], "there are no sequences"),
        ([], [], "there are no sequences"),
        ([1.0], [0, 1], "tokens holds float64, not integers: give (tokens, cu_seqlens) as two 1-D integer tensors"),
        ([1], [0, 1.0], "cu_seqlens holds float64, not integers"),
        ([[1]], [0, 1], "tokens has 2 dimensions"),
    ],
)
def test_bad_packed_sequences(tokens, cu_seqlens, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        PrefixTree.from_sequences((np.array(tokens), np.array(cu_seqlens)))


@pytest.mark.parametrize(
    ("parent", "lengths", "tokens", "text"),
    [
        ([-1, 2], [1, 1], None, "parent[1] is 2, which is no node: use -1 for a root, or one of 0 to 1"),
        ([-2], [1], None, "parent[0] is -2, which is no node"),
        ([0], [1], None, "node 0 is its own ancestor (parent[0] is 0, a cycle of 1)"),
        (
            [-1, 3, 1, 2, 3],
            [1] * 5,
            None,
            "node 1 is its own ancestor (parent[1] is 3, a cycle of 3): follow the parents",
        ),
        ([-1, 0], [1, 0], None, "lengths[1] is 0: a node has at least one token; join an empty node with its parent"),
        ([-1], [-4], None, "lengths[0] is -4"),
        ([-1, 0], [1], None, "parent has 2 nodes, lengths has 1: give one of each per node"),
        ([-1, 0], [1, 2], [1, 2], "tokens has 2 entries, the nodes' lengths add up to 3: give every node's tokens"),
        ([], [], [1], "tokens has 1 entries, the nodes' lengths add up to 0"),
        ([-1], [2], [1, -7], "tokens[1] is the negative token -7"),
        ([-1], [1.5], None, "lengths holds float64, not integers: give a flat list, array or tensor of integers"),
        ([False], [1], None, "parent holds bool, not integers"),
        (np.uint64([2**64 - 1, 0]), [1, 2], None, "parent has 18446744073709551615 at position 0, too large for int64"),
        ([-1, False], [1, 2], None, "parent has False at position 1, which is no integer"),
        ([[-1]], [1], None, "parent has 2 dimensions"),
        ([-1], [1], [0.5], "tokens holds float64, not integers"),
        ([-1], [2**31], None, "the token axis would have more than 2147483647 tokens (int32): split the sequences"),
        ([-1, 0], [2**30, 2**30], None, "the token axis would have more than 2147483647 tokens"),
        ([-1, 0], [1, 2**63 - 1], None, "the token axis would have more than 2147483647 tokens"),
    ],
)
def test_bad_nodes(parent, lengths, tokens, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        PrefixTree.from_nodes(parent, lengths, tokens)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda tree: tree.unpack(torch.zeros(4)),
            "x has shape (4,), the tree has 5 tokens: unpack takes one row per token",
        ),
        (lambda tree: tree.unpack(torch.tensor(1)), "x has shape (), the tree has 5 tokens"),
        (
            lambda tree: tree.pack(torch.zeros(5, 2)),
            "x has shape (5, 2), cu_seqlens has 7 tokens: pack takes one row per",
        ),
        (lambda tree: tree.pack(torch.zeros(7), "max"), "reduce is 'max': use one of 'first', 'sum', 'mean'"),
        (lambda tree: tree.pack(torch.arange(7), "mean"), "the mean of torch.int64 is no torch.int64: convert x"),
    ],
)
def test_bad_rows(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call(PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]]))
