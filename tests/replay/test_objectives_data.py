"""Data in either form, what is refused with which message, and what an objective keeps and forgets."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

from model_families import SEQUENCES
from objective_batches import assert_same, make_batch, of_objective
from objective_cases import CASES
from regrow import PrefixTree
from regrow.replay.objectives import CISPO, DPO, GRPO, GSPO, PPO, SFT, DrGRPO

T, F = True, False
MASK = [[F, T, T], [F, T], [F, F, T]]
TREE = PrefixTree.from_sequences([[1, 2, 3], [1, 4], [1, 2, 5]])
ZEROS = [[0.0] * 3, [0.0] * 2, [0.0] * 3]


def test_both_forms_are_the_same():
    batch = make_batch(SEQUENCES, seed=1)
    options = dict(kl_coefficient=0.1, aggregation="sequence-mean")
    lists = PPO(
        batch.mask, batch.token_advantages, old_logprobs=batch.old, reference_logprobs=batch.reference, **options
    )
    mask, advantages, old, reference = map(torch.cat, (batch.mask, batch.token_advantages, batch.old, batch.reference))
    dense = PPO(
        mask, advantages, old_logprobs=old, reference_logprobs=reference, cu_seqlens=batch.tree.cu_seqlens, **options
    )
    assert_same(of_objective(dense, batch), of_objective(lists, batch))
    arrays = PPO(
        mask.numpy(), advantages.numpy(), old_logprobs=old.numpy(), reference_logprobs=reference.numpy(),
        cu_seqlens=batch.tree.cu_seqlens.tolist(), **options,
    )  # fmt: skip
    assert_same(of_objective(arrays, batch), of_objective(lists, batch))


def test_numbers_in_lists_stay_fp64():
    logprobs = torch.zeros(TREE.num_tokens, dtype=torch.float64)
    assert PPO(MASK, [0.1, 0.1, 0.1])(logprobs, TREE, None).item() == pytest.approx(-0.1, rel=1e-15)


def test_data_of_a_padded_batch():
    ids = torch.tensor([[0, 1, 2, 3], [1, 4, 0, 0]])
    attention_mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]])
    response = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0]]).bool()
    tree = PrefixTree.from_padded(ids, attention_mask)
    objective = SFT(response[attention_mask.bool()], cu_seqlens=tree.cu_seqlens)
    assert objective.where(tree).tolist() == [False, True, True, True]


NAN, INF = float("nan"), float("inf")
DENSE = torch.tensor([F, T, T, F, T, F, F, T])
CU_SEQLENS = [0, 3, 5, 8]
# What is wrong with the mask, per-token data, per-sequence data, indices of pairs, and options.
REFUSED = {
    r"response_mask has no sequences: give one tensor for each": lambda: SFT([]),
    r"response_mask\[1\] is empty: leave the sequence out": lambda: SFT([[F, T], []]),
    r"response_mask holds torch.int64: give booleans \(mask.bool\(\)\)": lambda: SFT([[0, 1]]),
    r"response_mask is True at the first token of sequence 1.*begin the sequence with its prompt": lambda: SFT(
        [[F, T], [T, T]]
    ),
    r"response_mask has shape \(2, 2\): give a list.*padding cut off": lambda: SFT(torch.zeros(2, 2, dtype=bool)),
    r"response_mask\[0\] has shape \(1, 2\): give a list": lambda: SFT([[[F, T]]]),
    r"response_mask is one tensor.*give cu_seqlens too": lambda: SFT(DENSE),
    r"response_mask is a list, which says the lengths: leave cu_seqlens away": lambda: SFT(MASK, cu_seqlens=CU_SEQLENS),
    r"cu_seqlens does not rise from 0 to the 8 entries": lambda: SFT(DENSE, cu_seqlens=[0, 3, 7]),
    r"cu_seqlens does not rise from 0": lambda: SFT(DENSE, cu_seqlens=[0, 3, 3, 8]),
    r"response_mask\[1\] is on meta, response_mask on cpu: put all data on one device": lambda: SFT(
        [torch.tensor([F, T]), torch.tensor([F, T], device="meta")]
    ),
    r"weights is on meta, response_mask on cpu": lambda: SFT(
        DENSE, weights=torch.zeros(8, device="meta"), cu_seqlens=CU_SEQLENS
    ),
    r"weights has 2 sequences, response_mask has 3: give one for each": lambda: SFT(MASK, weights=ZEROS[:2]),
    r"old_logprobs\[1\] has shape \(3,\), the sequence has 2 tokens: give one entry per token": lambda: PPO(
        MASK, [0.0] * 3, old_logprobs=[ZEROS[0], ZEROS[0], ZEROS[2]]
    ),
    r"weights has shape \(7,\), the sequences have 8 tokens": lambda: SFT(MASK, weights=torch.zeros(7)),
    r"old_logprobs is nan at token 2 of sequence 0: give finite numbers at response tokens": lambda: PPO(
        MASK, [0.0] * 3, old_logprobs=[[0.0, 0.0, NAN], *ZEROS[1:]]
    ),
    r"reference_logprobs is -inf at token 1 of sequence 1": lambda: DPO(
        MASK, [ZEROS[0], [0.0, -INF], ZEROS[2]], chosen=[0], rejected=[1]
    ),
    r"advantages is nan at token 1 of sequence 0": lambda: PPO(MASK, [[0.0, NAN, 0.0], *ZEROS[1:]]),
    r"advantages is nan for sequence 1: give finite numbers": lambda: PPO(MASK, [0.0, NAN, 1.0]),
    r"advantages is inf for sequence 2": lambda: GSPO(MASK, [0.0, 1.0, INF]),
    r"advantages has shape \(2,\), there are 3 sequences: give one number for each": lambda: PPO(MASK, [0.0, 1.0]),
    r"advantages has shape \(3, 1\), there are 3 sequences": lambda: PPO(MASK, torch.zeros(3, 1)),
    r"advantages has one number per token, but GSPO's ratio is a sequence's": lambda: GSPO(MASK, torch.zeros(8)),
    r"chosen has 3, there are 3 sequences: count them from 0": lambda: DPO(MASK, ZEROS, chosen=[3], rejected=[1]),
    r"rejected has -1, there are 3 sequences": lambda: DPO(MASK, ZEROS, chosen=[0], rejected=[-1]),
    r"chosen has shape \(1,\) and holds torch.float32: give a list of indices": lambda: DPO(
        MASK, ZEROS, chosen=[0.0], rejected=[1]
    ),
    r"chosen has 2 sequences, rejected 1: give one of each for every pair": lambda: DPO(
        MASK, ZEROS, chosen=[0, 1], rejected=[2]
    ),
    r"chosen has 0 sequences": lambda: DPO(MASK, ZEROS, chosen=[], rejected=[]),
    r"pair 1 is sequence 2 against itself: give two sequences": lambda: DPO(
        MASK, ZEROS, chosen=[0, 2], rejected=[1, 2]
    ),
    r"beta is -1: give a finite number in \[0, inf\]": lambda: DPO(MASK, ZEROS, chosen=[0], rejected=[1], beta=-1),
    r"label_smoothing is 0.6: give a finite number in \[0, 0.5\]": lambda: DPO(
        MASK, ZEROS, chosen=[0], rejected=[1], label_smoothing=0.6
    ),
    r"clip's low side is 1.5: give a finite number in \[0, 1\]": lambda: PPO(MASK, [0.0] * 3, clip=(1.5, 0.2)),
    r"clip's high side is -0.1": lambda: CISPO(MASK, [0.0] * 3, clip=(0.1, -0.1)),
    r"clip's high side is inf": lambda: CISPO(MASK, [0.0] * 3, clip=(1, INF)),
    r"clip is \(0.1, 0.2, 0.3\): give one number, or \(low, high\)": lambda: PPO(MASK, [0.0] * 3, clip=(0.1, 0.2, 0.3)),
    r"dual_clip is 1: give a ratio above 1": lambda: PPO(MASK, [0.0] * 3, dual_clip=1.0),
    r"aggregation is 'mean': use 'token-mean', 'sequence-mean', 'sequence-sum', or a number > 0": lambda: SFT(
        MASK, aggregation="mean"
    ),
    r"aggregation is 0: use": lambda: SFT(MASK, aggregation=0),
    r"length is -5: give the largest number of tokens": lambda: DrGRPO(MASK, [0.0] * 3, length=-5),
    r"kl_coefficient is 0.1, but reference_logprobs is None: give both": lambda: GRPO(
        MASK, [0.0] * 3, kl_coefficient=0.1
    ),
    r"reference_logprobs is given without kl_coefficient": lambda: GSPO(MASK, [0.0] * 3, reference_logprobs=ZEROS),
    r"kl_estimator is 'kl': use one of 'k1', 'k2', 'k3'": lambda: GRPO(MASK, [0.0] * 3, kl_estimator="kl"),
    r"entropy_coefficient is nan": lambda: GRPO(MASK, [0.0] * 3, entropy_coefficient=NAN),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused_when_made(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


# Another number of sequences, another length, another device.
UNFIT = {
    r"the objective has 3 sequences, the tree 2: .* use objective.select\(sequences\)": [[1, 2, 3], [1, 4]],
    r"sequence 1 has 2 tokens in the objective and 3 in the tree: give both": [[1, 2, 3], [1, 4, 4], [1, 2, 5]],
    r"data are on cpu, the tree on meta: give the objective data on meta, or use tree.to\('cpu'\)": None,
}


@pytest.mark.parametrize("message", UNFIT)
@pytest.mark.parametrize("name", ["grpo", "gspo", "dpo", "sft"])
def test_unfit_tree(message, name):
    objective = {
        "grpo": lambda: GRPO(MASK, [0.0] * 3),
        "gspo": lambda: GSPO(MASK, [0.0] * 3),
        "dpo": lambda: DPO(MASK, ZEROS, chosen=[0], rejected=[1]),
        "sft": lambda: SFT(MASK),
    }[name]()
    sequences = UNFIT[message]
    tree = PrefixTree.from_sequences(sequences) if sequences else TREE.to("meta")
    with pytest.raises(ValueError, match=message):
        objective.where(tree)
    with pytest.raises(ValueError, match=message):
        objective(torch.zeros(tree.num_tokens), tree, None)


def test_other_refusals_of_calls():
    objective = SFT(MASK)
    with pytest.raises(ValueError, match=r"logprobs has shape \(4,\), for axis positions of shape \(5,\)"):
        objective(torch.zeros(4), TREE, None)
    with pytest.raises(ValueError, match=r"sequences has 3, there are 3 sequences: count them from 0"):
        objective.select([0, 3])
    with pytest.raises(ValueError, match=r"sequences has 1 more than once, which would count it again"):
        objective.select(torch.tensor([1, 0, 1]))
    with pytest.raises(ValueError, match=r"half of pair 1, sequences 2 and 1: keep pairs together"):
        DPO(MASK, ZEROS, chosen=[0, 2], rejected=[1, 1]).select([1, 0])
    for sequence_level in (GSPO(MASK, [0.0] * 3), DPO(MASK, ZEROS, chosen=[0], rejected=[1])):
        with pytest.raises(ValueError, match=r"logprobs has shape \(4,\), the tree has 5 tokens: give one for each"):
            sequence_level(torch.zeros(4), TREE, None)


def test_zero_coefficient_needs_no_reference():
    assert GRPO(MASK, [0.0] * 3, kl_coefficient=0.0)(torch.zeros(5), TREE, None) == 0


@pytest.mark.parametrize("name", CASES)
def test_copies_and_pickles(name):
    batch = make_batch(SEQUENCES, seed=4)
    objective = CASES[name].make(batch)
    expected = of_objective(objective, batch)  # fills the cache
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert not other.samples.fan_outs
        assert_same(of_objective(other, batch), expected)


@pytest.mark.parametrize("name", CASES)
def test_made_and_seen_under_inference_mode(name):
    batch = make_batch(SEQUENCES, seed=4)
    expected = of_objective(CASES[name].make(batch), batch)
    with torch.inference_mode():
        inside = copy.deepcopy(batch)
        inside.advantages = inside.advantages.clone()
        inside.old = [values.clone() for values in inside.old]
        objective = CASES[name].make(inside)
        part = objective.select(range(len(SEQUENCES)))
        objective(batch.logprobs, batch.tree, batch.entropy)  # the values-only pass
    assert_same(of_objective(objective, batch), expected)
    assert_same(of_objective(part, batch), expected)


def test_trees_are_forgotten():
    objective = GRPO(MASK, [0.0] * 3)
    tree = PrefixTree.from_sequences([[1, 2, 3], [1, 4], [1, 2, 5]])
    objective.where(tree)
    assert objective.samples.fan_out(tree) is objective.samples.fan_out(tree)
    gone = weakref.ref(tree)
    del tree
    gc.collect()
    assert gone() is None and not objective.samples.fan_outs


def test_indices_are_kept():
    pairs = torch.tensor([0, 2])
    objective = DPO(MASK, [[0.0, 1.0, 2.0], *ZEROS[1:]], chosen=pairs, rejected=[1, 1])
    expected = objective(torch.zeros(5), TREE, None)
    pairs.fill_(1)
    assert objective(torch.zeros(5), TREE, None) == expected


def test_data_are_constants_and_kept():
    batch = make_batch(SEQUENCES, seed=6)
    advantages = batch.advantages.clone().requires_grad_()
    for make in (PPO, GSPO):
        objective = make(batch.mask, advantages, old_logprobs=batch.old)
        expected = of_objective(objective, batch)
        with torch.no_grad():
            advantages.mul_(3)
            for values in batch.old:
                values.zero_()
        assert_same(of_objective(objective, batch), expected)
        loss = objective(batch.logprobs.clone(), batch.tree, None)
        assert not loss.requires_grad
        batch = make_batch(SEQUENCES, seed=6)
