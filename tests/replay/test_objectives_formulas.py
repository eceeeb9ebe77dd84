"""Every objective against its formula, sequence by sequence: values and gradients in log-probs and entropies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_families import SEQUENCES
from objective_batches import RANDOM_SEQUENCES, assert_same, derivatives, leaves, make_batch, of_objective
from objective_cases import CASES, TOKEN_SUMS, of_formula
from regrow.replay.objectives import PPO

SEEDS = range(4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_formula(name, seed):
    batch = make_batch(SEQUENCES, seed)
    assert_same(of_objective(CASES[name].make(batch), batch), of_formula(CASES[name], batch))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30)
@given(RANDOM_SEQUENCES, st.integers(0, 1000))
def test_formula_on_random_trees(name, sequences, seed):
    case = CASES[name]
    if len(sequences) >= case.min_sequences:
        batch = make_batch(sequences, seed)
        assert_same(of_objective(case.make(batch), batch), of_formula(case, batch))


@pytest.mark.parametrize("name", TOKEN_SUMS)
@settings(max_examples=30)
@given(RANDOM_SEQUENCES, st.integers(0, 1000))
def test_parts_of_the_axis_add_up(name, sequences, seed):
    batch = make_batch(sequences, seed)
    objective = TOKEN_SUMS[name].make(batch)
    generator = torch.Generator().manual_seed(seed)
    num_tokens = batch.tree.num_tokens
    cuts = sorted(torch.randint(0, num_tokens + 1, (3,), generator=generator).tolist())
    logprobs, entropy = leaves(batch)
    loss = 0.0
    for index in torch.randperm(num_tokens, generator=generator).tensor_split(cuts):
        loss = loss + objective.on_tokens(logprobs[index], batch.tree, entropy[index], index)
    assert_same(derivatives(loss, logprobs, entropy), of_objective(objective, batch))


def test_only_sums_over_tokens_offer_parts():
    batch = make_batch(SEQUENCES)
    for name, case in CASES.items():
        assert hasattr(case.make(batch), "on_tokens") == (name in TOKEN_SUMS), name


@pytest.mark.parametrize("name", CASES)
def test_other_tokens_do_not_matter(name):
    batch = make_batch(SEQUENCES, seed=5)
    objective = CASES[name].make(batch)
    where = objective.where(batch.tree)
    expected = of_objective(objective, batch)
    assert where.dtype == torch.bool and where.shape == (batch.tree.num_tokens,)
    assert not where[batch.tree.parent_index < 0].any()
    assert where.any() and not where.all()
    for gradient in expected[1:]:
        assert not gradient[~where].any()
    batch.logprobs[~where] = 0  # what the engine passes there
    batch.entropy[~where] = 0
    assert_same(of_objective(objective, batch), expected)


def test_a_token_counts_once_for_each_sequence_that_shares_it():
    # The shared token 2 belongs to both responses; 1 is the prompt.
    batch = make_batch([[1, 2, 3], [1, 2, 4]])
    batch.mask = [torch.tensor([False, True, True])] * 2
    objective = PPO(batch.mask, [3.0, -5.0], aggregation=1)
    _, gradient, _ = of_objective(objective, batch)
    assert gradient.tolist() == [0, 2, -3, 5]
    assert objective.where(batch.tree).tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", ["ppo", "grpo, k3", "gspo", "dpo", "sft, weights"])
def test_data_in_other_dtypes(name):
    batch = make_batch(SEQUENCES, seed=3)
    single = CASES[name].make(batch)  # of fp64 data, for fp32 log-probs
    expected = of_objective(single, batch)
    batch.logprobs, batch.entropy = batch.logprobs.float(), batch.entropy.float()
    actual = of_objective(single, batch)
    assert {value.dtype for value in actual} == {torch.float32}
    torch.testing.assert_close([value.double() for value in actual], expected, rtol=1e-4, atol=1e-5)

    for data in ("old", "reference", "token_advantages", "weights"):
        setattr(batch, data, [values.half() for values in getattr(batch, data)])
    batch.advantages = batch.advantages.half()
    half = of_objective(CASES[name].make(batch), batch)
    assert {value.dtype for value in half} == {torch.float32}
    torch.testing.assert_close([value.double() for value in half], expected, rtol=2e-2, atol=2e-2)
