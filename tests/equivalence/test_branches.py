"""A tree is its branches: packed attention equals every sequence alone, and the shape of the tree alone matters."""

import pytest
import torch

from attention_cases import make_case, run_regrow
from named_trees import named_trees
from regrow import PrefixTree

TREES = {name: tree for name, tree in named_trees().items() if tree.num_tokens}
close = dict(rtol=0, atol=1e-12)


def alone(case):
    """Every sequence by itself, in torch's own attention; gradients of shared tokens add by autograd."""
    q, k, v = (t.detach().requires_grad_() for t in (case.q, case.k, case.v))
    group = q.size(1) // k.size(1)
    outs = []
    for rows in case.tree.gather_index.tensor_split(case.tree.cu_seqlens[1:-1]):
        heads = [x[rows].transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))]
        outs.append(torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1))
    return torch.cat(outs), (q, k, v)


@pytest.mark.parametrize("name", TREES)
def test_packed_is_each_sequence_alone(name):
    case = make_case(TREES[name], dtype=torch.float64)
    dense, _ = alone(case)
    torch.testing.assert_close(case.tree.unpack(run_regrow(case)["out"]), dense.detach(), **close)


@pytest.mark.parametrize("name", TREES)
def test_the_gradient_of_a_trunk_is_the_sum_over_its_branches(name):
    case = make_case(TREES[name], dtype=torch.float64)
    dense, leaves = alone(case)
    dense_dout = torch.randn_like(dense)
    expected = torch.autograd.grad(dense, leaves, dense_dout)
    case.dlse.zero_()
    case.dout = case.tree.pack(dense_dout, reduce="sum")
    results = run_regrow(case)
    for gradient, name in zip(expected, ("dq", "dk", "dv"), strict=True):
        torch.testing.assert_close(results[name], gradient, rtol=0, atol=1e-11)


def moved(case, tree, index):
    """The same tokens on another axis: row i of the new axis is row index[i] of the old."""
    new = make_case(tree, dtype=case.dtype, sinks=True, **{k: v for k, v in case.options.items() if k == "window"})
    for name in ("q", "k", "v", "dout"):
        setattr(new, name, getattr(case, name)[index])
    new.dlse, new.sinks = case.dlse[:, index], case.sinks
    return new


@pytest.mark.parametrize("window", [None, 6])
def test_sibling_order_is_irrelevant(window):
    parent, lengths = [-1, 0, 0, 0, 1, 1, -1], [40, 30, 7, 50, 3, 20, 33]
    order = [6, 0, 3, 2, 1, 5, 4]  # of the nodes: roots and siblings swapped
    tree = PrefixTree.from_nodes(parent, lengths)
    place = {node: i for i, node in enumerate(order)}
    swapped = PrefixTree.from_nodes(
        [-1 if parent[node] < 0 else place[parent[node]] for node in order], [lengths[node] for node in order]
    )
    starts = tree.node_start[tree.node_of_input].tolist()
    new_starts = swapped.node_start[swapped.node_of_input].tolist()
    index = torch.empty(tree.num_tokens, dtype=torch.int64)
    for i, node in enumerate(order):
        index[new_starts[i] : new_starts[i] + lengths[node]] = torch.arange(lengths[node]) + starts[node]
    case = make_case(tree, dtype=torch.float64, sinks=True, window=window)
    before, after = run_regrow(case), run_regrow(moved(case, swapped, index))
    torch.testing.assert_close(after.pop("dsinks"), before.pop("dsinks"), **close)
    for name in before:
        torch.testing.assert_close(after[name], before[name][index], **close)


def test_splitting_a_node_changes_nothing():
    whole = PrefixTree.from_nodes([-1, 0, 0], [100, 70, 60])
    split = PrefixTree.from_nodes([-1, 0, 1, 2, 1, 4], [1, 99, 64, 6, 1, 59])
    case = make_case(whole, sinks=True)
    before = run_regrow(case)
    after = run_regrow(moved(case, split, torch.arange(230)))
    for name in before:
        assert torch.equal(after[name], before[name]), name


def test_a_forest_is_its_trees():
    trees = [TREES["comb"], TREES["conversation"]]
    nodes, lengths = [], []
    for tree in trees:
        shift = len(nodes)
        nodes += [node + shift if node >= 0 else -1 for node in tree.parent.tolist()]
        lengths += tree.node_start.diff().tolist()
    case = make_case(PrefixTree.from_nodes(nodes, lengths), dtype=torch.float64, sinks=True)
    whole = run_regrow(case)
    size, dsinks = trees[0].num_tokens, 0
    for tree, rows in zip(trees, (slice(0, size), slice(size, None)), strict=True):
        part = run_regrow(moved(case, tree, torch.arange(case.tree.num_tokens)[rows]))
        dsinks = dsinks + part.pop("dsinks")
        for name in part:
            torch.testing.assert_close(part[name], whole[name][rows], **close)
    torch.testing.assert_close(dsinks, whole["dsinks"], **close)
