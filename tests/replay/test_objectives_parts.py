"""`select`: the losses and gradients of parts of a batch add up to those of the whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_families import SEQUENCES
from objective_batches import RANDOM_SEQUENCES, assert_same, derivatives, leaves, make_batch, of_objective
from objective_cases import CASES
from regrow import PrefixTree
from regrow.replay.objectives import DPO


def of_parts(objective, batch, parts):
    """The sum over parts, each on a tree of its own sequences, whose log-probs are taken from the whole tree."""
    logprobs, entropy = leaves(batch)
    bounds = batch.tree.cu_seqlens.tolist()
    loss = 0.0
    for part in parts:
        tree = PrefixTree.from_sequences([batch.sequences[sequence] for sequence in part])
        axis = torch.cat([batch.tree.gather_index[bounds[sequence] : bounds[sequence + 1]] for sequence in part])
        of_part = torch.empty(tree.num_tokens, dtype=torch.int64).index_copy(0, tree.gather_index, axis)
        loss = loss + objective.select(part)(logprobs[of_part], tree, entropy[of_part])
    return derivatives(loss, logprobs, entropy)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("dpo")])
@settings(max_examples=20)
@given(RANDOM_SEQUENCES, st.integers(0, 1000))
def test_parts_add_up(name, sequences, seed):
    batch = make_batch(sequences, seed)
    objective = CASES[name].make(batch)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(sequences), generator=generator)
    cut = int(torch.randint(0, len(sequences) + 1, (), generator=generator))
    parts = [part.tolist() for part in shuffled.tensor_split([cut]) if len(part)]
    assert_same(of_parts(objective, batch, parts), of_objective(objective, batch))


@pytest.mark.parametrize("options", [{}, {"length_normalised": True, "label_smoothing": 0.2}])
def test_parts_with_whole_pairs_add_up(options):
    batch = make_batch(SEQUENCES, seed=2)
    objective = DPO(batch.mask, batch.reference, chosen=[4, 0, 3, 4], rejected=[1, 6, 0, 7], **options)
    parts = [[7, 4, 1], [6, 5, 3, 0], [2]]  # 2 and 5 are in no pair
    assert_same(of_parts(objective, batch, parts), of_objective(objective, batch))


def test_sequences_in_no_pair_are_not_looked_at():
    batch = make_batch([[1, 2, 3], [1, 4, 5], [1, 6, 7]])
    batch.mask = [torch.tensor([False, True, True])] * 3
    batch.reference = [torch.zeros(3), torch.zeros(3), torch.full([3], torch.nan)]
    objective = DPO(batch.mask, batch.reference, chosen=[0], rejected=[1])
    assert objective.where(batch.tree).tolist() == [False, True, True, True, True, False, False]
    assert objective.select([2]).where(PrefixTree.from_sequences([[1, 6, 7]])).tolist() == [False] * 3


@pytest.mark.parametrize("name", CASES)
def test_a_part_of_a_part(name):
    batch = make_batch(SEQUENCES, seed=1)
    if name.startswith("dpo"):
        objective = DPO(batch.mask, batch.reference, chosen=[6, 0], rejected=[1, 3])
    else:
        objective = CASES[name].make(batch)
    tree = PrefixTree.from_sequences([SEQUENCES[1], SEQUENCES[6]])
    logprobs, entropy = -torch.rand(2, tree.num_tokens, dtype=torch.float64)
    direct = objective.select([1, 6])(logprobs, tree, entropy)
    assert direct == objective.select(torch.tensor([6, 1, 3, 0])).select([1, 0])(logprobs, tree, entropy)


@pytest.mark.parametrize("name", CASES)
def test_a_part_without_sequences(name):
    batch = make_batch(SEQUENCES, seed=1)
    objective = CASES[name].make(batch).select([])
    logprobs = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = objective(logprobs, PrefixTree.from_nodes([], [], []), torch.zeros(0, dtype=torch.float64))
    assert loss.item() == 0 and loss.requires_grad
