"""Where a rollout's tokens lie: nothing overlaps, places are used again, and all sequences get theirs."""

import doctest
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.rollout import layout as module
from regrow.rollout import prompts as prompts_module
from regrow.rollout.layout import Layout
from regrow.rollout.prompts import Prompts

# Few tokens, so that much is shared, some are equal and some the beginning of others.
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)


@given(PROMPTS, st.integers(1, 3))
def test_the_trie_of_the_prompts(rows, group):
    prompts = Prompts(rows, group)
    assert prompts.num_sequences == len(rows) * group
    assert [prompts.unique[p] for p in prompts.of_sequence] == [row for row in rows for _ in range(group)]
    assert len(set(map(tuple, prompts.unique))) == len(prompts.unique)
    assert prompts.counts == [group * rows.count(list(unique)) for unique in prompts.unique]
    assert prompts.longest == max(map(len, rows))
    assert prompts.num_tokens == len({tuple(row[: n + 1]) for row in rows for n in range(len(row))})
    leaves = [node for node in prompts.nodes if node.prompt >= 0]
    assert sorted(leaf.prompt for leaf in leaves) == list(range(len(prompts.unique)))
    for prompt, path in enumerate(prompts.paths):
        assert prompts.nodes[path[-1]].prompt == prompt and prompts.nodes[path[0]].parent == -1
        tokens = []
        for above, node in zip([-1, *path], path, strict=False):
            assert prompts.nodes[node].parent == above and prompts.nodes[node].depth == len(tokens)
            assert above < node and (above < 0 or node in prompts.nodes[above].children)
            tokens += prompts.nodes[node].tokens
        assert tokens == prompts.unique[prompt]
    for node in prompts.nodes:
        assert (node.prompt >= 0) == (not node.children)
        firsts = [prompts.nodes[child].tokens[:1] for child in node.children]
        assert len({tuple(first) for first in firsts}) == len(firsts)


def capacity(prompts, slice_tokens, max_live):
    """By the formula in words."""
    places = 2 * -(-max_live // min(prompts.counts))
    everybody = max_live >= prompts.num_sequences

    def below(sizes):
        return sum(sizes) if everybody else min(sum(sizes), places * max(sizes))

    def size(node):
        if node.prompt >= 0:
            return len(node.tokens) + min(prompts.counts[node.prompt], max_live) * slice_tokens
        return len(node.tokens) + below([size(prompts.nodes[child]) for child in node.children])

    return below([size(node) for node in prompts.nodes if node.parent < 0])


@given(PROMPTS, st.integers(1, 3), st.integers(1, 9), st.integers(1, 40))
def test_capacity(rows, group, slice_tokens, max_live):
    prompts = Prompts(rows, group)
    everything = prompts.num_tokens + prompts.num_sequences * slice_tokens
    found = Layout(prompts, slice_tokens, max_live).capacity
    assert found == capacity(prompts, slice_tokens, max_live)
    if max_live >= prompts.num_sequences:
        assert found == everything
    assert found <= Layout(prompts, slice_tokens, max_live + 1).capacity <= everything


def test_a_smaller_batch_needs_no_more():
    # Four places of the longest prompt would be more than all prompts together.
    prompts = Prompts([[0] * 1000, [1], [2], [3], [4]])
    assert Layout(prompts, 10, max_live=2).capacity == 1004 + 5 * 10


def test_memory_is_that_of_the_batch():
    prompts = Prompts([[prompt, 7, 7] for prompt in range(100)], group=4)
    assert Layout(prompts, 10, max_live=8).capacity == 4 * (3 + 4 * 10)


class Simulation:
    """The engine without a model: sequences start where there is room and end at random."""

    def __init__(self, prompts, slice_tokens, max_live):
        self.prompts, self.max_live = prompts, max_live
        self.layout = Layout(prompts, slice_tokens, max_live)
        self.waiting = list(prompts.counts)
        self.live = []  # (prompt, begin of the slice)
        self.next_prompt = self.started = 0

    def start(self):
        while len(self.live) < self.max_live:
            free = [p for p, slices in self.layout.free_slices.items() if slices and self.waiting[p]]
            if free:
                prompt = free[0]
            elif self.next_prompt < len(self.waiting) and self.layout.admit(self.next_prompt) is not None:
                prompt = self.next_prompt
                self.next_prompt += 1
            else:
                return
            self.waiting[prompt] -= 1
            self.started += 1
            self.live.append((prompt, self.layout.take_slice(prompt)))
            self.check()

    def end(self, index):
        prompt, begin = self.live.pop(index)
        self.layout.give_slice(prompt, begin)
        if not self.waiting[prompt] and all(other != prompt for other, _ in self.live):
            self.layout.release(prompt)
        self.check()

    def check(self):
        """Tokens of nodes that someone below needs, and slices, lie apart, each inside what is above it."""
        layout, nodes = self.layout, self.prompts.nodes
        needed = {node for prompt, _ in self.live for node in self.prompts.paths[prompt]}
        needed |= {n for p in layout.free_slices for n in self.prompts.paths[p]}
        intervals = []
        for node in needed:
            begin, parent = layout.begin[node], nodes[node].parent
            assert begin >= 0
            intervals.append((begin, begin + len(nodes[node].tokens)))
            if parent >= 0:
                assert layout.begin[parent] + len(nodes[parent].tokens) <= begin
                assert layout.end(node) <= layout.end(parent)
        for prompt, begin in self.live:
            leaf = self.prompts.paths[prompt][-1]
            intervals.append((begin, begin + layout.slice_tokens))
            assert layout.begin[leaf] + len(nodes[leaf].tokens) <= begin
            assert begin + layout.slice_tokens <= layout.end(leaf)
        intervals = sorted(interval for interval in intervals if interval[0] < interval[1])
        assert all(before[1] <= after[0] for before, after in pairwise(intervals))
        assert not intervals or (intervals[0][0] >= 0 and intervals[-1][1] <= layout.capacity)


def simulate(rows, group, slice_tokens, max_live, seed):
    prompts, rng = Prompts(rows, group), random.Random(seed)
    simulation = Simulation(prompts, slice_tokens, max_live)
    while True:
        simulation.start()
        if not simulation.live:
            break
        for _ in range(rng.randint(1, len(simulation.live))):
            simulation.end(rng.randrange(len(simulation.live)))
    assert simulation.started == prompts.num_sequences
    layout = simulation.layout
    assert set(layout.begin) == {-1} and not layout.free_slices and not any(layout.waiting + layout.placed)
    for free in layout.free_places.values():
        assert sorted(free) == list(range(layout.limit))
    return layout


@settings(max_examples=150)
@given(PROMPTS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**32))
def test_a_rollout_of_random_order_ends(rows, group, slice_tokens, max_live, seed):
    simulate(rows, group, slice_tokens, max_live, seed)


def test_places_are_used_again():
    rows = [[first, second, 9, third] for first in range(5) for second in range(5) for third in range(5)]
    layout = simulate(rows, group=1, slice_tokens=3, max_live=2, seed=0)
    assert layout.limit == 4 and set(layout.free_places) >= {-1}
    assert layout.capacity == 4 * (1 + 4 * (2 + 4 * (1 + 3)))  # 125 prompts


def test_with_stragglers_all_slots_are_filled():
    # Each prompt of a batch but one sequence has ended, and the next prompts still find a place.
    prompts = Prompts([[prompt] for prompt in range(9)], group=4)
    simulation = Simulation(prompts, slice_tokens=2, max_live=8)
    simulation.start()
    for prompt in (0, 1):
        for _ in range(3):
            simulation.end([p for p, _ in simulation.live].index(prompt))
    simulation.start()
    assert sorted({p for p, _ in simulation.live}) == [0, 1, 2, 3] and len(simulation.live) == 8


# What is wrong -> a patch of `Layout`.
WRONG = {
    "slices are not given back": ("give_slice", lambda layout, prompt, begin: None),
    "places are not given back": ("release", lambda layout, prompt: layout.free_slices.pop(prompt)),
    "slices overlap": ("take_slice", lambda layout, prompt: layout.free_slices[prompt].pop() - 1),
    "a place is freed too early": (
        "take_slice",
        lambda layout, prompt: layout.begin[layout.paths[prompt][-1]] + len(layout.nodes[-1].tokens),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_layouts_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(Layout, *WRONG[wrong])
    with pytest.raises(AssertionError):
        for seed in range(20):
            simulate([[p, q] for p in range(6) for q in range(2)], 5, 2, 3, seed)


@pytest.mark.parametrize("which", [module, prompts_module])
def test_examples(which):
    assert doctest.testmod(which).failed == 0
