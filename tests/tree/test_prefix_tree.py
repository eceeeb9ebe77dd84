"""Both constructors against the naive trie, on random and on named trees."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naive_trie import NaiveTree
from named_trees import named_trees
from regrow.tree import PrefixTree

# Few distinct tokens, so that sequences share, repeat and extend each other.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@st.composite
def node_lists(draw):
    """parent, lengths, tokens of a random forest whose nodes stand in random order."""
    num_nodes = draw(st.integers(0, 12))
    parent = [draw(st.integers(-1, node - 1)) for node in range(num_nodes)]
    order = draw(st.permutations(range(num_nodes)))
    moved = [0] * num_nodes
    for node, above in enumerate(parent):
        moved[order[node]] = -1 if above < 0 else order[above]
    lengths = draw(st.lists(st.integers(1, 4), min_size=num_nodes, max_size=num_nodes))
    return moved, lengths, list(range(100, 100 + sum(lengths)))


def assert_matches(tree, naive):
    for name in ("tokens", "parent_index", "position_ids", "subtree_end", "gather_index"):
        assert getattr(tree, name).tolist() == getattr(naive, name), name
    dtypes = {name: tensor.dtype for name, tensor in tree._tensors()}
    int32 = ("subtree_end", "host_subtree_end")
    assert dtypes == {name: torch.int32 if name in int32 else torch.int64 for name in dtypes}
    end = tree.subtree_end.tolist()
    for query, path in enumerate(naive.paths):
        assert {key for key in range(tree.num_tokens) if key <= query < end[key]} == path


def assert_consistent(tree):
    """What must hold whatever the tokens."""
    start, parent = tree.node_start.tolist(), tree.parent.tolist()
    assert start[0] == 0 and start[-1] == tree.num_tokens and len(start) == tree.num_nodes + 1
    for node, above in enumerate(parent):
        assert -1 <= above < node
        assert tree.parent_index[start[node]] == (start[above + 1] - 1 if above >= 0 else -1)
    lengths = tree.cu_seqlens.diff()
    within = tree.position_ids[tree.gather_index]
    assert within.tolist() == list(itertools.chain.from_iterable(map(range, lengths.tolist())))
    assert tree.host_subtree_end is tree.subtree_end and tree.host_position_ids is tree.position_ids


@given(SEQUENCES)
def test_from_sequences_is_the_naive_trie(sequences):
    tree, naive = PrefixTree.from_sequences(sequences), NaiveTree.from_sequences(sequences)
    assert_matches(tree, naive)
    assert_consistent(tree)
    assert tree.node_start.tolist() == [*naive.radix_nodes(), tree.num_tokens]
    assert tree.cu_seqlens.tolist() == [0, *itertools.accumulate(map(len, sequences))]
    assert tree.unpack(tree.tokens).tolist() == list(itertools.chain.from_iterable(sequences))


@given(SEQUENCES, st.randoms())
def test_order_of_sequences_does_not_change_the_nodes(sequences, random):
    shuffled = random.sample(sequences, len(sequences))
    one, other = PrefixTree.from_sequences(sequences), PrefixTree.from_sequences(shuffled)
    assert sorted(one.node_start.diff().tolist()) == sorted(other.node_start.diff().tolist())


@given(node_lists())
def test_from_nodes_is_the_naive_tree(nodes):
    parent, lengths, tokens = nodes
    tree, naive = PrefixTree.from_nodes(parent, lengths, tokens), NaiveTree.from_nodes(parent, lengths, tokens)
    assert_matches(tree, naive)
    assert_consistent(tree)
    assert tree.node_start[tree.node_of_input].tolist() == naive.node_of_input_start
    assert tree.node_start.diff()[tree.node_of_input].tolist() == lengths
    above = [-1 if p < 0 else tree.node_of_input[p].item() for p in parent]
    assert tree.parent[tree.node_of_input].tolist() == above
    assert tree.num_sequences == len(set(range(len(parent))) - set(parent))
    assert PrefixTree.from_nodes(parent, lengths).tokens is None


@given(SEQUENCES)
def test_the_constructors_agree(sequences):
    trie = PrefixTree.from_sequences(sequences)
    nodes = PrefixTree.from_nodes(trie.parent, trie.node_start.diff(), trie.tokens)
    assert nodes.node_of_input.tolist() == list(range(trie.num_nodes))
    for name in ("tokens", "parent", "node_start", "subtree_end", "position_ids", "parent_index"):
        assert torch.equal(getattr(trie, name), getattr(nodes, name)), name


@pytest.mark.parametrize("name", named_trees())
def test_named_trees(name):
    tree = named_trees()[name]
    assert_consistent(tree)
    if tree.num_tokens:
        again = PrefixTree.from_sequences((tree.unpack(tree.tokens), tree.cu_seqlens))
        assert torch.equal(again.unpack(again.tokens), tree.unpack(tree.tokens))


def as_forms(sequences):
    flat = list(itertools.chain.from_iterable(sequences))
    cu_seqlens = [0, *itertools.accumulate(map(len, sequences))]
    strided = [torch.tensor([[t, -1] for t in s])[:, 0] for s in sequences]
    return {
        "lists": sequences,
        "tuples": list(map(tuple, sequences)),
        "tensors": list(map(torch.tensor, sequences)),
        "int32 tensors": [torch.tensor(s, dtype=torch.int32) for s in sequences],
        "strided tensors": strided,
        "mixed dtypes": [torch.tensor(s, dtype=(torch.uint8, torch.int16)[i % 2]) for i, s in enumerate(sequences)],
        "arrays": list(map(np.array, sequences)),
        "int8 arrays": [np.array(s, np.int8) for s in sequences],
        "NumPy integers": [list(np.array(s, np.int32)) for s in sequences],
        "mixed kinds": [(list, np.array, torch.tensor)[i % 3](s) for i, s in enumerate(sequences)],
        "packed tensors": (torch.tensor(flat), torch.tensor(cu_seqlens, dtype=torch.int32)),
        "packed arrays": (np.array(flat), np.array(cu_seqlens)),
    }


@pytest.mark.parametrize("form", as_forms([[1]]))
def test_every_form_of_input_gives_the_same_tree(form):
    sequences = [[5, 6, 7], [5, 6, 8, 9], [5, 6], [1], [5, 6, 7]]
    tree = PrefixTree.from_sequences(as_forms(sequences)[form])
    assert_matches(tree, NaiveTree.from_sequences(sequences))


# Long shared parts take the block comparison; these lengths stand around its block of 256.
@pytest.mark.parametrize("shared", [1, 255, 256, 257, 511, 512, 513, 1000])
def test_long_shared_parts(shared):
    trunk = list(range(shared))
    tree = PrefixTree.from_sequences([[*trunk, 7, 1], [*trunk, 8, 2], trunk, [*trunk, 8, 2, 3]])
    assert tree.node_start.tolist() == [0, shared, shared + 2, shared + 5]
    assert tree.tokens.tolist() == [*trunk, 7, 1, 8, 2, 3]


def test_wide_and_clashing_children():
    # Multiples of a power of two clash in a table that looks at low bits only.
    sequences = [[3, child << 20] for child in range(5000)] + [[3, child << 20, 1] for child in range(5000)]
    tree = PrefixTree.from_sequences(sequences)
    assert tree.num_tokens == 1 + 2 * 5000 and tree.num_nodes == 5001
    assert torch.equal(tree.unpack(tree.tokens)[:10000:2], torch.full((5000,), 3))


def test_a_million_nodes_deep():
    num_nodes = 1_000_000
    tree = PrefixTree.from_nodes(torch.arange(num_nodes) - 1, torch.ones(num_nodes, dtype=torch.int64))
    assert torch.equal(tree.position_ids, torch.arange(num_nodes))
    assert bool((tree.subtree_end == num_nodes).all())
    parent = torch.arange(1, num_nodes + 1)
    parent[-1] = -1
    backwards = PrefixTree.from_nodes(parent, torch.ones(num_nodes, dtype=torch.int64))
    assert torch.equal(backwards.node_of_input, torch.arange(num_nodes - 1, -1, -1))


def test_empty_tree():
    tree = PrefixTree.from_nodes([], [])
    assert (tree.num_tokens, tree.num_nodes, tree.num_sequences) == (0, 0, 0)
    assert tree.node_start.tolist() == tree.cu_seqlens.tolist() == [0]
    assert tree.unpack(torch.zeros(0, 3)).shape == tree.pack(torch.zeros(0, 3)).shape == (0, 3)
