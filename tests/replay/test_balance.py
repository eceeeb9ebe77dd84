"""Costs of runs, ways to cut, and deals to ranks, against trees built anew and against all possibilities."""

import itertools
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow import PrefixTree
from regrow.replay.balance import balance, deal
from regrow.replay.leaf_runs import LeafRuns, cut_at, cut_cheaply, lowest_cap

PAIR_COST = 0.1


def leaf_runs(sequences, max_tokens=10**6, pair_cost=PAIR_COST):
    """The runs of the sequences' tree, and the sequences in depth-first order."""
    tree = PrefixTree.from_sequences(sequences)
    last = tree.gather_index[tree.cu_seqlens[1:] - 1].numpy()
    order = np.argsort(last, kind="stable")
    runs = LeafRuns.of(last[order], tree.position_ids.numpy(), max_tokens, pair_cost)
    return runs, [sequences[sequence] for sequence in order]


def random_sequences(rng, count, longest):
    """Each branches off another at some token, or shares nothing."""
    new_token = itertools.count()
    share, sequences = rng.random(), []
    for _ in range(count):
        stem = rng.choice(sequences) if sequences and rng.random() < share else []
        branch = [next(new_token) for _ in range(rng.randint(1, longest))]
        sequences.append(stem[: rng.randint(0, len(stem))] + branch)
    return sequences


def all_cuts(runs):
    """Every way to cut that keeps to `max_tokens`."""
    inner = range(1, runs.num_leaves)
    for chosen in itertools.chain.from_iterable(itertools.combinations(inner, k) for k in range(runs.num_leaves)):
        cuts = [0, *chosen, runs.num_leaves]
        if all(runs.tokens(*run) <= runs.max_tokens for run in itertools.pairwise(cuts)):
            yield cuts


def costs_between(runs, cuts):
    return [runs.cost(*run) for run in itertools.pairwise(cuts)]


def best_deal(costs, ranks):
    """What the slowest rank costs in the best of all assignments; loads are sorted, for ranks are alike."""
    possible = {(0.0,) * ranks}
    for cost in costs:
        possible = {
            tuple(sorted((*loads[:rank], loads[rank] + cost, *loads[rank + 1 :])))
            for loads in possible
            for rank in range(ranks)
        }
    return min(max(loads) for loads in possible)


def slowest(runs, dealt):
    return max(sum(runs.cost(*run) for run in mine) for mine in dealt)


short_sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=7)


@given(short_sequences)
def test_runs_have_the_tokens_and_the_cost_of_their_own_tree(sequences):
    runs, ordered = leaf_runs(sequences)
    for start, stop in itertools.combinations(range(len(ordered) + 1), 2):
        tree = PrefixTree.from_sequences(ordered[start:stop])
        assert runs.tokens(start, stop) == tree.num_tokens
        assert runs.cost(start, stop) == pytest.approx(tree.num_tokens + PAIR_COST * tree.attention_pairs()[0])


@given(short_sequences, st.integers(6, 20), st.floats(0, 30))
def test_furthest_stops_end_the_longest_runs_under_both_limits(sequences, max_tokens, cap):
    runs, _ = leaf_runs(sequences, max_tokens)
    for start, stop in enumerate(runs.furthest_stops(cap)):
        fitting = [
            end
            for end in range(start + 1, runs.num_leaves + 1)
            if runs.tokens(start, end) <= max_tokens and runs.cost(start, end) <= cap
        ]
        assert stop == max(fitting, default=start + 1)


@given(short_sequences, st.integers(6, 20))
def test_cut_at_makes_the_fewest_runs_and_cut_cheaply_the_least_duplicates(sequences, max_tokens):
    runs, _ = leaf_runs(sequences, max_tokens)
    stops = runs.furthest_stops()
    possible = list(all_cuts(runs))
    assert len(cut_at(stops)) == min(map(len, possible))
    price = [sum(costs_between(runs, cuts)) + len(cuts) for cuts in possible]
    cheap = cut_cheaply(runs, stops)
    assert cheap in possible
    assert sum(costs_between(runs, cheap)) + len(cheap) == pytest.approx(min(price))


@given(short_sequences, st.integers(6, 20), st.integers(0, 3))
def test_the_lowest_cap_is_that_of_the_best_way_to_cut(sequences, max_tokens, more):
    runs, _ = leaf_runs(sequences, max_tokens)
    count = len(cut_at(runs.furthest_stops())) - 1 + more
    best = min(max(costs_between(runs, cuts)) for cuts in all_cuts(runs) if len(cuts) - 1 <= count)
    single = max(runs.cost(leaf, leaf + 1) for leaf in range(runs.num_leaves))
    assert max(best, single) <= lowest_cap(runs, count) * (1 + 1e-12)
    assert lowest_cap(runs, count) <= max(best, single) * (1 + 2e-4)


def test_neighbours_that_meet_on_a_rank_are_joined_within_the_limit():
    sequences = [[5, 6, 7], [5, 6, 8], [5, 6, 9]]
    assert deal(leaf_runs(sequences)[0], [0, 1, 2, 3], ranks=1) == [[(0, 3)]]
    assert deal(leaf_runs(sequences, max_tokens=4)[0], [0, 1, 2, 3], ranks=1) == [[(0, 2), (2, 3)]]


def test_the_slowest_rank_is_within_a_quarter_of_the_best_possible_and_mostly_the_best():
    rng = random.Random(0)
    ratios = []
    for _ in range(300):
        sequences = random_sequences(rng, rng.randint(1, 7), rng.choice([4, 10, 40]))
        longest = max(map(len, sequences))
        max_tokens = rng.choice([longest, longest * 4 // 3, longest * 2, 10**6])
        runs, _ = leaf_runs(sequences, max_tokens, pair_cost=rng.choice([0, 0.01, 0.1]))
        ranks = rng.randint(1, 3)
        best = min(best_deal(costs_between(runs, cuts), ranks) for cuts in all_cuts(runs))
        ratios.append(slowest(runs, balance(runs, ranks)) / best)
    assert max(ratios) <= 1.25
    assert statistics.mean(ratios) <= 1.01
    assert statistics.median(ratios) == pytest.approx(1)


def test_a_group_is_split_over_ranks():
    prompt = list(range(100))
    runs, _ = leaf_runs([[*prompt, *[1000 + response] * 50] for response in range(8)], pair_cost=0)
    dealt = balance(runs, ranks=2)
    assert sorted(dealt) == [[(0, 4)], [(4, 8)]]
    assert slowest(runs, dealt) == 100 + 4 * 50


def test_no_cut_is_made_where_none_helps():
    runs, _ = leaf_runs([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]])
    assert balance(runs, ranks=1) == [[(0, 3)]]
