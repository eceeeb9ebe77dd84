"""The cut of a tree into segments and the order in which they run, by integers alone."""

import doctest
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preorder_trees import Arrays, preorder_nodes
from regrow.replay import schedule


def cut(tree, chunk_tokens):
    return schedule.cut(tree.node_start, tree.parent, tree.position_ids, tree.subtree_end, chunk_tokens)


# What each has that the others have not; cuts by hand: (begin, end, depth, parent, inner).
NAMED = {
    "the end of a prompt runs with its responses": (
        [-1] + [0] * 8, [4096] + [128] * 8, 4096, [(0, 1024, 0, -1, True), (1024, 5120, 1024, 0, False)]
    ),
    "responses that fill a chunk leave no room": (
        [-1, 0, 0], [5, 2, 2], 4, [(0, 2, 0, -1, True), (2, 5, 2, 0, True), (5, 9, 5, 1, False)]
    ),
    "one long node: even pieces, and a full leaf": (
        [-1], [10], 4, [(0, 3, 0, -1, True), (3, 6, 3, 0, True), (6, 10, 6, 1, False)]
    ),
    "a chain of nodes": (
        [-1, 0, 1, 2], [3] * 4, 4,
        [(0, 3, 0, -1, True), (3, 6, 3, 0, True), (6, 8, 6, 1, True), (8, 12, 8, 2, False)],
    ),
    "a comb": (
        [-1, 0, 0, 2, 2], [2] * 5, 4,
        [(0, 2, 0, -1, True), (2, 4, 2, 0, False), (4, 6, 2, 0, True), (6, 10, 4, 2, False)],
    ),
    "small siblings share a leaf": (
        [-1, 0, 0, 0, 0], [1, 2, 2, 3, 1], 4, [(0, 1, 0, -1, True), (1, 5, 1, 0, False), (5, 9, 1, 0, False)]
    ),
    "a large sibling parts the small ones": (
        [-1, 0, 0, 0], [1, 2, 6, 2], 4,
        [(0, 1, 0, -1, True), (1, 3, 1, 0, False), (3, 5, 1, 0, True), (5, 9, 3, 2, False), (9, 11, 1, 0, False)],
    ),
    "roots share a leaf": ([-1, -1, -1], [1, 1, 1], 2, [(0, 2, 0, -1, False), (2, 3, 0, -1, False)]),
    "a tree that fits": ([-1, 0, 0], [3, 2, 2], 7, [(0, 7, 0, -1, False)]),
    "no tree": ([], [], 4, []),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_cuts(name):
    parent, lengths, chunk_tokens, expected = NAMED[name]
    assert [astuple(segment) for segment in cut(Arrays.of(parent, lengths), chunk_tokens)] == expected


def test_examples():
    assert doctest.testmod(schedule).failed == 0


trees = preorder_nodes().map(lambda nodes: Arrays.of(*nodes))
chunks = st.integers(1, 60)


@given(trees, chunks)
def test_segments_are_the_axis_in_preorder(tree, chunk_tokens):
    segments = cut(tree, chunk_tokens)
    assert [s.begin for s in segments] == [0, *(s.end for s in segments)][:-1]
    assert segments[-1].end == tree.num_tokens
    parents = {segment.parent for segment in segments}
    for index, segment in enumerate(segments):
        assert 1 <= segment.size <= chunk_tokens
        assert segment.parent < index
        assert segment.inner == (index in parents)
        assert segment.depth == tree.position_ids[segment.begin]


@given(trees, chunks)
def test_inner_segments_are_pieces_of_one_node(tree, chunk_tokens):
    for segment in cut(tree, chunk_tokens):
        if segment.inner:
            node = max(n for n, start in enumerate(tree.node_start[:-1]) if start <= segment.begin)
            assert segment.end <= tree.node_start[node + 1]


@given(trees, chunks)
def test_a_path_is_the_slots_before_a_segment_and_its_own_tokens(tree, chunk_tokens):
    segments = cut(tree, chunk_tokens)
    for index, segment in enumerate(segments):
        above = [t for i in schedule.path_to(segments, index) for t in range(segments[i].begin, segments[i].end)]
        assert len(above) == segment.depth
        for token in range(segment.begin, segment.end):
            path = tree.path(token)
            assert path[: segment.depth] == above
            assert all(segment.begin <= t < token for t in path[segment.depth :])


class Simulation:
    """Runs an exact gradient pass with sets of tokens in place of tensors, and asserts what the engine relies on."""

    def __init__(self, tree, segments, slots=()):
        self.tree, self.segments, self.slots = tree, segments, list(slots)
        self.owed = {}  # path token -> tokens whose backward has left it a gradient
        self.runs = dict.fromkeys(range(tree.num_tokens), 0)
        self.live = 0

    def run(self, segment):
        assert self.slots == self.tree.path(segment.begin)
        for token in range(segment.begin, segment.end):
            self.runs[token] += 1
        self.live = max(self.live, len(self.slots) + segment.size)

    def capture(self, segment):
        self.run(segment)
        self.slots += range(segment.begin, segment.end)

    def differentiate(self, segment):
        if segment.inner:  # its own slots are still there, and are overwritten by the same values
            assert self.slots[segment.depth :] == list(range(segment.begin, segment.end))
            del self.slots[segment.depth :]
        self.run(segment)
        for token in range(segment.begin, segment.end):
            rest = {t for t in self.tree.below(token) if t >= segment.end}
            assert self.owed.pop(token, set()) == rest, "a gradient was taken before all had given"
            for above in self.slots:
                self.owed.setdefault(above, set()).add(token)

    def finish(self, order):
        for step, index in order:
            getattr(self, step)(self.segments[index])
        assert not self.owed and not self.slots


@given(trees, chunks)
def test_gradients_are_taken_once_and_after_all_have_given(tree, chunk_tokens):
    segments = cut(tree, chunk_tokens)
    simulation = Simulation(tree, segments)
    simulation.finish(schedule.gradient_order(segments))
    for segment in segments:
        assert {simulation.runs[t] for t in range(segment.begin, segment.end)} == {2 if segment.inner else 1}
    assert simulation.live == schedule.path_capacity(segments)
    longest = max(tree.position_ids) + 1
    assert simulation.live <= longest + max(segment.size for segment in segments)
    assert max((s.depth + s.size for s in segments if s.inner), default=0) < longest  # what stays on the path


@given(trees, chunks)
def test_a_gradient_pass_behind_a_values_pass_uses_its_path(tree, chunk_tokens):
    segments = cut(tree, chunk_tokens)
    on_path = schedule.path_to(segments, len(segments) - 1)
    slots = [t for i in on_path for t in range(segments[i].begin, segments[i].end)]
    simulation = Simulation(tree, segments, slots)
    simulation.finish(schedule.gradient_order(segments, on_path))
    saved = {t for t, runs in simulation.runs.items() if runs == 1}
    assert saved == {t for s in segments if not s.inner for t in range(s.begin, s.end)} | set(slots)


@given(trees, chunks, st.data())
def test_pruning_keeps_what_is_needed(tree, chunk_tokens, data):
    segments = cut(tree, chunk_tokens)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(segments), max_size=len(segments)))
    needed = {i for index in range(len(segments)) if wanted[index] for i in [index, *schedule.path_to(segments, index)]}
    kept = schedule.prune(segments, wanted)
    assert [(s.begin, s.end, s.depth) for s in kept] == [
        (s.begin, s.end, s.depth) for index, s in enumerate(segments) if index in needed
    ]
    parents = {segment.parent for segment in kept}
    for place, segment in enumerate(kept):
        assert segment.inner == (place in parents)
        if segment.parent >= 0:  # a path has no gaps
            assert kept[segment.parent].depth + kept[segment.parent].size == segment.depth
    for step, index in schedule.gradient_order(kept):
        assert step == "differentiate" or kept[index].inner


def test_capacity_of_nothing():
    assert schedule.path_capacity([]) == 0
    assert list(schedule.gradient_order([])) == []
    assert schedule.prune([], []) == []
