"""pack and unpack, devices, copies, repr, compile, and that building stays fast."""

import copy
import io
import pickle
import time

import pytest
import torch
from hypothesis import given
from torch._subclasses.fake_tensor import FakeTensorMode

from named_trees import named_trees
from regrow.tree import PrefixTree
from test_prefix_tree import SEQUENCES

TREE = PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])


@given(SEQUENCES)
def test_pack_inverts_unpack(sequences):
    tree = PrefixTree.from_sequences(sequences)
    x = torch.randn(tree.num_tokens, 2, 3, dtype=torch.float64)
    counts = torch.bincount(tree.gather_index, minlength=tree.num_tokens).view(-1, 1, 1)
    assert torch.equal(tree.pack(tree.unpack(x)), x)
    torch.testing.assert_close(tree.pack(tree.unpack(x), "mean"), x, rtol=1e-14, atol=0)
    torch.testing.assert_close(tree.pack(tree.unpack(x), "sum"), x * counts, rtol=1e-14, atol=0)


@given(SEQUENCES)
def test_first_is_the_earliest_sequence(sequences):
    tree = PrefixTree.from_sequences(sequences)
    earliest = {}
    for place, token in enumerate(tree.gather_index.tolist()):
        earliest.setdefault(token, place)
    packed = tree.pack(torch.arange(tree.gather_index.size(0)))
    assert packed.tolist() == [earliest[token] for token in range(tree.num_tokens)]


@pytest.mark.parametrize("name", [name for name in named_trees() if name != "empty"])
@pytest.mark.parametrize("reduce", ["first", "sum", "mean"])
def test_gradients(name, reduce):
    tree = named_trees()[name]
    x = torch.randn(tree.gather_index.size(0), dtype=torch.float64, requires_grad=True)
    y = torch.randn(tree.num_tokens, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tree.pack(x, reduce), (x,), fast_mode=True)
    assert torch.autograd.gradcheck(tree.unpack, (y,), fast_mode=True)


def test_gradient_of_first_flows_to_the_first_only():
    x = torch.zeros(7, requires_grad=True)
    TREE.pack(x).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0, 0, 1, 1]


def test_half_precision_sums_are_made_in_fp32():
    tree = PrefixTree.from_sequences([[1]] * 512)
    # bf16 holds no odd number above 256: adding ones one by one would stop there.
    assert tree.pack(torch.ones(512, dtype=torch.bfloat16), "sum").item() == 512


def saved_and_loaded(tree):
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("clone", [lambda tree: pickle.loads(pickle.dumps(tree)), copy.deepcopy, saved_and_loaded])
def test_copies_are_equal_and_have_no_plans(clone):
    tree = PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])
    tree.plans["key"] = torch.zeros(1)
    other = clone(tree)
    assert other.plans == {} and list(tree.plans) == ["key"]
    assert [name for name, _ in other._tensors()] == [name for name, _ in tree._tensors()]
    for (name, ours), (_, theirs) in zip(tree._tensors(), other._tensors(), strict=True):
        assert torch.equal(ours, theirs), name
    assert other.host_subtree_end is other.subtree_end


IDS = torch.tensor([[5, 6, 7], [5, 6, 8]])
MAKERS = {
    "lists": lambda: PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8]]),
    "tensors": lambda: PrefixTree.from_sequences(list(IDS)),
    "packed": lambda: PrefixTree.from_sequences((IDS.flatten(), torch.tensor([0, 3, 6]).int())),
    "padded": lambda: PrefixTree.from_padded(IDS, torch.ones_like(IDS)),
    "nodes": lambda: PrefixTree.from_nodes([-1, 0, 0], [2, 1, 1], [5, 6, 7, 8]),
    "moved": lambda: MAKERS["padded"]().to("meta"),
    "loaded": lambda: pickle.loads(pickle.dumps(MAKERS["padded"]())),
    "copied": lambda: copy.deepcopy(MAKERS["padded"]()),
}


# A rollout runs under inference_mode; training uses its trees.
@pytest.mark.parametrize("make", MAKERS)
def test_trees_made_under_inference_mode_train(make):
    with torch.inference_mode():
        tree = MAKERS[make]()
    assert not [name for name, tensor in tree._tensors() if tensor.is_inference()]
    if make != "moved":
        assert tree.host_subtree_end is tree.subtree_end
        x = torch.ones(tree.num_tokens, requires_grad=True)
        (tree.pack(tree.unpack(x), "mean") + tree.to_padded(x).sum() * tree.position_ids).sum().backward()
        assert x.grad.tolist() == [11, 11, 6, 6]


@pytest.mark.parametrize("make", ["lists", "nodes", "moved"])
def test_trees_made_under_a_fake_mode_are_real(make):
    with FakeTensorMode():
        tree = MAKERS[make]() if make != "moved" else TREE.to("meta")
    assert {type(tensor) for _, tensor in tree._tensors()} == {torch.Tensor}


def test_to():
    tree = PrefixTree.from_nodes([-1, 0], [1, 2])
    tree.plans["key"] = 1
    assert tree.to("cpu") is tree
    moved = tree.to("meta")
    assert {tensor.device.type for name, tensor in moved._tensors() if not name.startswith("host_")} == {"meta"}
    assert moved.host_subtree_end is tree.subtree_end and moved.host_position_ids is tree.position_ids
    assert moved.plans == {} and moved.tokens is None


def test_repr_says_what_is_shared():
    assert repr(TREE) == (
        "PrefixTree(2 sequences, 3 nodes; tokens: 5 packed of 7 dense (1.40x); "
        "attention pairs: 13 packed of 16 dense (1.23x))"
    )
    assert "0 packed of 0 dense;" in repr(PrefixTree.from_nodes([], []))


def test_compiles_without_a_break():
    @torch.compile(fullgraph=True, backend="eager")
    def loss(x, tree):
        return tree.pack(tree.unpack(x), "mean") * tree.position_ids + tree.num_tokens + tree.subtree_end

    x = torch.randn(5)
    torch.testing.assert_close(loss(x, TREE), x * TREE.position_ids + 5 + TREE.subtree_end)


def test_a_default_device_does_not_reach_the_tree():
    with torch.device("meta"):
        tree = PrefixTree.from_padded([[5, 6]], [[0, 1]])
    assert {tensor.device.type for _, tensor in tree._tensors()} == {"cpu"}


def seconds(build):
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        build()
        times.append(time.perf_counter() - begin)
    return min(times)


# Five times the bars that bench/test_tree.py measures: what fails here is quadratic, not slow.
def test_building_is_not_quadratic():
    shared = torch.randint(0, 50_000, (65_536,))
    long = [torch.cat([shared, torch.randint(0, 50_000, (65_536,))]) for _ in range(64)]
    assert seconds(lambda: PrefixTree.from_sequences(long)) < 5 * 0.3
    wide = [[1, 2, 3, branch] for branch in range(65_536)]
    assert seconds(lambda: PrefixTree.from_sequences(wide)) < 5 * 0.1
    assert seconds(lambda: PrefixTree.from_nodes([-1] + [0] * 65_536, [512] + [1] * 65_536)) < 5 * 0.1


# Multiples of the inverse of the golden-ratio multiplier, which Fibonacci hashing puts on one place.
def test_chosen_tokens_do_not_collide():
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    chosen = [[token] for token in (inverse * i % 2**64 for i in range(40_000)) if token < 2**63]
    assert seconds(lambda: PrefixTree.from_sequences(chosen)) < 0.1
