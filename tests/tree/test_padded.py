"""Padded batches: into a tree, and back to [B, L]."""

import copy
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.tree import PrefixTree
from test_prefix_tree import SEQUENCES

ROWS = [[5, 6, 7], [5, 6, 8, 9], [5]]
PAD = 0  # also a real token below: only the mask says what is padding


@st.composite
def padded_batches(draw):
    """Sequences, and the same as ids and mask [B, L] with the padding anywhere: left, right, both, holes."""
    sequences = draw(SEQUENCES)
    length = max(map(len, sequences)) + draw(st.integers(0, 3))
    ids, mask = torch.full((len(sequences), length), PAD), torch.zeros(len(sequences), length, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        places = sorted(draw(st.permutations(range(length)))[: len(sequence)])
        ids[row, places] = torch.tensor(sequence)
        mask[row, places] = 1
    return sequences, ids, mask


@given(padded_batches())
def test_the_tree_is_that_of_the_real_tokens(batch):
    sequences, ids, mask = batch
    tree, expected = PrefixTree.from_padded(ids, mask), PrefixTree.from_sequences(sequences)
    for name, tensor in expected._tensors():
        assert torch.equal(getattr(tree, name), tensor), name
    assert torch.equal(tree.padded_index >= 0, mask.bool())


@given(padded_batches())
def test_to_padded_is_the_way_back(batch):
    _, ids, mask = batch
    tree = PrefixTree.from_padded(ids, mask)
    assert torch.equal(tree.to_padded(tree.tokens, fill=-1), ids.masked_fill(mask == 0, -1))
    rows = tree.to_padded(torch.stack([tree.tokens, tree.position_ids], 1).double(), fill=0.5)
    assert rows.shape == (*ids.shape, 2)
    assert torch.equal(rows[mask.bool()], tree.unpack(torch.stack([tree.tokens, tree.position_ids], 1)).double())
    assert (rows[mask == 0] == 0.5).all()


def left(sequence, length):
    return [PAD] * (length - len(sequence)) + sequence


def right(sequence, length):
    return sequence + [PAD] * (length - len(sequence))


# Named, so that a fault says which: what the property above draws at random.
@pytest.mark.parametrize("pads", [(left, left, left), (right, right, right), (left, right, left)])
def test_left_right_and_mixed_padding(pads):
    ids = torch.tensor([pad(row, 5) for pad, row in zip(pads, ROWS, strict=True)])
    tree = PrefixTree.from_padded(ids, ids != PAD)
    assert tree.tokens.tolist() == [5, 6, 7, 8, 9] and tree.position_ids.tolist() == [0, 1, 2, 2, 3]
    assert torch.equal(tree.to_padded(tree.tokens), ids)


def test_other_trees_are_padded_on_the_right():
    tree = PrefixTree.from_sequences(ROWS)
    assert tree.to_padded(tree.tokens).tolist() == [right(row, 4) for row in ROWS]
    assert PrefixTree.from_nodes([], []).to_padded(torch.zeros(0, 3)).shape == (0, 0, 3)


@pytest.mark.parametrize("made", ["padded", "sequences"])
def test_gradients(made):
    ids = torch.tensor([left(row, 5) for row in ROWS])
    tree = PrefixTree.from_padded(ids, ids != PAD) if made == "padded" else PrefixTree.from_sequences(ROWS)
    x = torch.randn(tree.num_tokens, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tree.to_padded, (x,), fast_mode=True)


def test_padding_has_no_gradient():
    tree = PrefixTree.from_sequences(ROWS)
    x = torch.zeros(5, requires_grad=True)
    upstream = torch.ones(3, 4).masked_fill(tree.to_padded(tree.tokens) == PAD, float("nan"))
    tree.to_padded(x).backward(upstream)
    assert x.grad.tolist() == [3, 2, 1, 1, 1]


# ids and mask come from tokenizers, rollout engines and NumPy code.
@pytest.mark.parametrize("convert", [np.array, list, lambda rows: torch.tensor(rows, dtype=torch.int32)])
def test_forms_of_input(convert):
    ids = [right(row, 4) for row in ROWS]
    mask = [[int(token != PAD) for token in row] for row in ids]
    assert PrefixTree.from_padded(convert(ids), convert(mask)).tokens.tolist() == [5, 6, 7, 8, 9]


def test_copies_and_moves_keep_the_places():
    tree = PrefixTree.from_padded(torch.tensor([[0, 5]]), torch.tensor([[0, 1]]))
    assert copy.deepcopy(tree).padded_index.tolist() == [[-1, 0]]
    assert tree.to("meta").padded_index.device.type == "meta"


@pytest.mark.parametrize(
    ("ids", "mask", "text"),
    [
        ([[1, 2]], [[1]], "ids has shape (1, 2), attention_mask (1, 1): give both as [batch, length]"),
        ([1, 2], [1, 1], "ids has shape (2,), attention_mask (2,)"),
        ([[1, 2]], [[[[1, 1]]]], "ids has shape (1, 2), attention_mask (1, 1, 1, 2)"),
        ([[1.0, 2.0]], [[1, 1]], "ids holds torch.float32, not integers: give token ids"),
        ([[1, 2]], [[0.0, -1e9]], "attention_mask holds -1000000000.0: give 1 (or True) at real tokens and 0"),
        ([[1, 2]], [[1, 2]], "attention_mask holds 2"),
        ([[1, 2], [1, 2]], [[1, 1], [0, 0]], "row 1 has no real token, only padding: leave it out"),
        (np.uint64([[1, 2**63]]), [[1, 1]], "ids has 9223372036854775808, too large for int64: give token ids"),
        (np.ma.array([[1, 2]], mask=[[0, 1]]), [[1, 1]], "ids is a masked array, whose mask a tree cannot keep"),
        (torch.ones(1, 2).to_sparse(), [[1, 1]], "ids has layout torch.sparse_coo: give a dense tensor or array"),
        ([[1, -100]], [[1, 1]], "sequence 0 has the negative token -100 at position 1"),
    ],
)
def test_bad_batches(ids, mask, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        PrefixTree.from_padded(ids, mask)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="there are no sequences"):
        PrefixTree.from_padded(torch.zeros(0, 3, dtype=torch.long), torch.zeros(0, 3))


def test_other_rows_are_refused():
    with pytest.raises(ValueError, match=re.escape("x has shape (4,), the tree has 5 tokens: to_padded takes one row")):
        PrefixTree.from_sequences(ROWS).to_padded(torch.zeros(4))
