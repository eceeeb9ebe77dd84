"""A partition hands out every sequence once, keeps to the limit, shares, balances, and changes no gradient."""

import math
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regrow
from regrow import PrefixTree
from regrow.replay.partition import partition

batches = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)
slack = st.integers(0, 20)  # tokens that max_tokens allows beyond the longest sequence
some_ranks = st.integers(1, 4)


def cut(sequences, extra, ranks, **options):
    return partition(sequences, max(map(len, sequences)) + extra, ranks, **options)


def parts_of(partitioned):
    return [part for mine in partitioned for part in mine]


def loads(partitioned):
    return [sum(part.cost for part in mine) for mine in partitioned]


def as_lists(partitioned):
    return [[part.sequences.tolist() for part in mine] for mine in partitioned]


def sequence_cost(sequence, pair_cost):
    length = len(sequence)
    return length + pair_cost * length * (length + 1) / 2


def round_robin_slowest(sequences, ranks, pair_cost):
    """The slowest rank's cost if sequence i goes to rank i % ranks and nothing is shared."""
    return max(sum(sequence_cost(sequence, pair_cost) for sequence in sequences[rank::ranks]) for rank in range(ranks))


def grpo_batch(rng, prompts, responses):
    """Prompts of 200 to 1,200 tokens, responses of log-normal lengths: median 900, the longest 16,000."""
    batch = []
    for _ in range(prompts):
        prompt = rng.integers(0, 50_000, rng.integers(200, 1200))
        for length in np.clip(np.exp(rng.normal(6.8, 1, responses)), 16, 16_000).astype(int):
            batch.append(np.concatenate([prompt, rng.integers(0, 50_000, length)]))
    return batch


@given(batches, slack, some_ranks)
def test_every_sequence_is_in_exactly_one_part_with_its_own_tokens(sequences, extra, ranks):
    partitioned = cut(sequences, extra, ranks)
    assert len(partitioned) == ranks
    parts = parts_of(partitioned)
    assert sorted(torch.cat([part.sequences for part in parts]).tolist()) == list(range(len(sequences)))
    for part in parts:
        assert part.sequences.dtype == torch.int64
        assert part.sequences.tolist() == sorted(part.sequences.tolist())
        unpacked = part.tree.unpack(part.tree.tokens).split(part.tree.cu_seqlens.diff().tolist())
        assert [tokens.tolist() for tokens in unpacked] == [sequences[index] for index in part.sequences]


@given(batches, slack, some_ranks, st.sampled_from([0, 0.1]))
def test_parts_keep_to_the_limit_and_predict_their_cost(sequences, extra, ranks, pair_cost):
    for part in parts_of(cut(sequences, extra, ranks, pair_cost=pair_cost)):
        assert part.tree.num_tokens <= max(map(len, sequences)) + extra
        assert part.cost == pytest.approx(part.tree.num_tokens + pair_cost * part.tree.attention_pairs()[0])


@given(batches, slack, some_ranks)
def test_what_a_part_shares_is_packed_once(sequences, extra, ranks):
    parts = parts_of(cut(sequences, extra, ranks))
    packed = sum(part.tree.num_tokens for part in parts)
    whole = PrefixTree.from_sequences(sequences).num_tokens
    assert whole <= packed <= sum(map(len, sequences))
    if len(parts) == 1:
        assert packed == whole


@given(batches)
def test_one_rank_with_room_for_all_gets_one_part(sequences):
    (mine,) = partition(sequences, sum(map(len, sequences)))
    assert as_lists([mine]) == [[list(range(len(sequences)))]]
    assert torch.equal(mine[0].tree.subtree_end, PrefixTree.from_sequences(sequences).subtree_end)


@given(batches, slack, some_ranks, st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter_to_the_costs(sequences, extra, ranks, rng):
    partitioned = cut(sequences, extra, ranks)
    assert as_lists(cut(sequences, extra, ranks)) == as_lists(partitioned)
    shuffled = cut(rng.sample(sequences, len(sequences)), extra, ranks)
    assert [[part.cost for part in mine] for mine in shuffled] == [[part.cost for part in mine] for mine in partitioned]


@given(batches, slack, some_ranks, st.sampled_from([0, 0.1]))
def test_no_deal_of_unshared_sequences_is_much_faster(sequences, extra, ranks, pair_cost):
    # Longest first guarantees 4/3 - 1/(3 ranks) against the best deal of single sequences, and so against any; within
    # 1 % of that, fewer passes win.
    factor = 1.01 * (4 / 3 - 1 / (3 * ranks))
    slowest = max(loads(cut(sequences, extra, ranks, pair_cost=pair_cost)))
    assert slowest <= factor * round_robin_slowest(sequences, ranks, pair_cost) * (1 + 1e-12)


@pytest.mark.parametrize("max_tokens", [17_300, 32_768, 10**7])
def test_a_realistic_batch_is_balanced_and_shares(max_tokens):
    batch = grpo_batch(np.random.default_rng(0), prompts=64, responses=8)
    pair_cost = 1 / (6 * 4096)
    partitioned = partition(batch, max_tokens, ranks=8, pair_cost=pair_cost)
    costs = loads(partitioned)
    assert max(costs) <= 1.02 * sum(costs) / 8
    assert max(costs) <= round_robin_slowest(batch, 8, pair_cost) / 1.5
    passes = [len(mine) for mine in partitioned]
    assert max(passes) <= min(passes) + 1
    packed = sum(part.tree.num_tokens for part in parts_of(partitioned))
    assert packed <= 1.02 * PrefixTree.from_sequences(batch).num_tokens


def test_one_group_is_split_where_that_is_faster():
    prompt = list(range(100))
    group = [[*prompt, *[1000 + response] * 50] for response in range(8)]
    partitioned = partition(group, 10**6, ranks=2)
    assert [[part.tree.num_tokens for part in mine] for mine in partitioned] == [[300], [300]]


def test_too_few_sequences_leave_ranks_without_parts():
    assert as_lists(partition([[5, 6], [7]], 10, ranks=3)) == [[[0]], [[1]], []]


def test_equal_sequences_and_prefixes_of_each_other_stay_together():
    assert as_lists(partition([[5, 6], [9, 9, 9], [5, 6], [5], [5, 6, 7]], 3, ranks=2)) == [[[0, 2, 3, 4]], [[1]]]


def test_packed_sequences_are_taken_too():
    tokens, cu_seqlens = torch.tensor([5, 6, 7, 8, 9, 5, 6, 4]), torch.tensor([0, 2, 5, 8])
    assert as_lists(partition((tokens, cu_seqlens), 3, ranks=2)) == [[[0, 2]], [[1]]]


def test_what_is_made_under_inference_mode_serves_training():
    with torch.inference_mode():
        ((part,),) = partition([[5, 6], [7]], 10)
    values = torch.ones(2, requires_grad=True)
    values.exp()[part.sequences].sum().backward()
    torch.testing.assert_close(values.grad, values.detach().exp())


class SmallModel(torch.nn.Module):
    """One attention layer in fp64: a tree -> the log-probs of its tokens."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = {"embedding": (30, 16), "positions": (40, 16), "q": (16, 16), "k": (16, 16), "v": (16, 16)}
        for name, shape in shapes.items():
            values = torch.randn(*shape, generator=generator, dtype=torch.float64) / 4
            self.register_parameter(name, torch.nn.Parameter(values))

    def forward(self, tree):
        x = self.embedding[tree.tokens] + self.positions[tree.position_ids]
        q, k, v = ((x @ weight).view(-1, 2, 8) for weight in (self.q, self.k, self.v))
        return regrow.tree_logprobs(x + regrow.tree_attention(q, k, v, tree).flatten(1), self.embedding, tree)


def weighted_loss(model, tree, advantages, num_tokens):
    """The policy gradient's sum over the sequences' tokens, divided by a number that belongs to the whole batch."""
    lengths = tree.cu_seqlens.diff()
    return -(tree.unpack(model(tree)) * advantages.repeat_interleave(lengths)).sum() / num_tokens


@pytest.mark.parametrize("max_tokens", [14, 30, 1000])
def test_the_gradients_of_the_parts_add_up_to_the_whole_s(max_tokens):
    rng = random.Random(0)
    prompts = [[rng.randrange(30) for _ in range(length)] for length in (3, 9)]
    batch = [prompt + [rng.randrange(30) for _ in range(rng.randint(1, 5))] for prompt in prompts for _ in range(6)]
    advantages = torch.randn(len(batch), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    num_tokens = sum(map(len, batch))
    model = SmallModel()
    weighted_loss(model, PrefixTree.from_sequences(batch), advantages, num_tokens).backward()
    expected = [parameter.grad for parameter in model.parameters()]

    model.zero_grad()
    partitioned = partition(batch, max_tokens, ranks=3)
    passes = max(map(len, partitioned))
    for mine in partitioned:
        for part in mine:
            weighted_loss(model, part.tree, advantages[part.sequences], num_tokens).backward()
        for _ in range(passes - len(mine)):  # what makes the passes of all ranks as many
            (model(PrefixTree.from_sequences([[0]])).sum() * 0).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


# Every refusal names the value and the remedy.
@pytest.mark.parametrize(
    ("sequences", "options", "message"),
    [
        ([], {}, "there are no sequences: pass at least one"),
        ([[5], []], {}, "sequence 1 is empty"),
        (
            [[5], [5, 6, 7, 8]],
            {"max_tokens": 3},
            "sequence 1 has 4 tokens, max_tokens is 3: shorten the sequence, or allow 4",
        ),
        ([[5]], {"max_tokens": 0}, "max_tokens is 0: allow as many tokens as the longest sequence has, at least"),
        ([[5]], {"ranks": 0}, "ranks is 0: give the number of data-parallel ranks, at least 1"),
        ([[5]], {"pair_cost": -1}, "pair_cost is -1: give what a pair costs in units of a token"),
        ([[5]], {"pair_cost": math.nan}, "pair_cost is nan: give what a pair costs"),
        ([[5]], {"pair_cost": math.inf}, "pair_cost is inf: give what a pair costs"),
    ],
)
def test_messages(sequences, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        partition(sequences, **{"max_tokens": 10, **options})
