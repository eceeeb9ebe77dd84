"""What the GPU benches call useful work, by hand and against the mask."""

import pytest
import torch
from gpu_work import Work, attention_backward_work, attention_work, gather_work, scatter_work, useful_pairs
from gpu_workloads import conversation, decoding, grpo, small_workloads, verification, workloads

from named_trees import named_trees
from regrow.reference import visible


@pytest.mark.parametrize("name", named_trees())
def test_pairs_are_those_of_the_mask(name):
    tree = named_trees()[name]
    everyone = torch.arange(tree.num_tokens)
    mask = visible(tree.subtree_end, tree.position_ids, everyone, everyone)
    assert useful_pairs(tree) == int(mask.sum()) == tree.attention_pairs()[0]
    some = everyone[::3]
    assert useful_pairs(tree, some) == int(mask[some].sum())


def test_operations_by_hand():
    # Two queries that see 3 and 4 of 5 keys; 4 query heads, 2 KV heads; K of 8 values, V of 6; 2 bytes each.
    work = attention_work(3 + 4, 2, 5, heads=(4, 2), dims=(8, 6), element_size=2)
    assert work.operations == 7 * 4 * (2 * 8 + 2 * 6)
    q, k, v, out, lse = 2 * 4 * 8 * 2, 5 * 2 * 8 * 2, 5 * 2 * 6 * 2, 2 * 4 * 6 * 2, 2 * 4 * 4
    assert work.bytes == q + k + v + out + lse


def test_operations_of_the_backward_by_hand():
    work = attention_backward_work(3 + 4, 2, 5, heads=(4, 2), dims=(8, 6), element_size=2)
    scores, weights, dv, dk, dq = 2 * 8, 2 * 6, 2 * 6, 2 * 8, 2 * 8
    assert work.operations == 7 * 4 * (scores + weights + dv + dk + dq)
    q, k, v, out, lse = 2 * 4 * 8 * 2, 5 * 2 * 8 * 2, 5 * 2 * 6 * 2, 2 * 4 * 6 * 2, 2 * 4 * 4
    assert work.bytes == 2 * (q + k + v + out) + lse  # out and its gradient
    square = dict(heads=(4, 2), dims=(8, 8), element_size=2)
    assert 2 * attention_backward_work(7, 2, 5, **square).operations == 5 * attention_work(7, 2, 5, **square).operations


# The chain of N: N (N + 1) / 2 pairs, the formula that FlashAttention's benches halve N^2 for.
def test_a_chain():
    chain = workloads()[0]
    pairs = useful_pairs(chain.tree)
    assert pairs == 4096 * 4097 // 2
    work = attention_work(pairs, 4096, 4096, heads=(32, 8), dims=(128, 128), element_size=2)
    assert work.operations == 4 * pairs * 32 * 128 == 137_472_507_904  # 0.137 TFLOP
    assert work.bytes == 2 * 4096 * 128 * (32 + 32 + 8 + 8) + 4 * 4096 * 32


def test_rows():
    assert gather_work(10, 64).bytes == 10 * (64 + 64 + 8)
    assert scatter_work(10, 3, 64).bytes == 10 * (64 + 8) + 3 * 64


# At 100 operations and 10 bytes a second.
@pytest.mark.parametrize("work, floor", [(Work(500, 20), 5), (Work(100, 40), 4), (Work(0, 5), 0.5)])
def test_floor(work, floor):
    assert work.floor(100, 10) == floor


def test_the_issue_s_workloads():
    drafts = verification(32, 16, 16384, "tree")
    assert (drafts.batch, drafts.num_queries, drafts.tree.num_tokens) == (32, 512, 32 * 16400)
    depth = drafts.tree.position_ids[drafts.query_index].view(32, 16)
    assert (depth[:, 0] == 16384).all() and depth.min() == 16384 and depth.max() < 16400
    chains = verification(2, 16, 100, "chain")
    assert chains.tree.position_ids[chains.query_index].tolist() == 2 * list(range(100, 116))
    group = grpo(32768, 8, 1024).tree
    assert (group.num_tokens, group.num_sequences) == (40960, 8)
    turns = conversation(1024, 8, 128).tree
    assert (turns.num_nodes, turns.num_sequences, int(turns.position_ids.max())) == (255, 128, 1024 + 7 * 128 - 1)
    last = decoding(64, 8192)
    assert (last.num_queries, int(last.tree.position_ids[last.query_index].min())) == (64, 8191)


@pytest.mark.parametrize("workload", small_workloads(), ids=lambda workload: workload.name)
def test_places_say_the_same_as_the_tree(workload):
    tree = workload.tree
    index = torch.arange(tree.num_tokens) if workload.query_index is None else workload.query_index
    mask = visible(tree.subtree_end, tree.position_ids, index, torch.arange(tree.num_tokens))
    position, end = workload.places()
    key = torch.arange(end.size(1))
    local = (key <= position[..., None]) & (position[..., None] < end[:, None])
    blocks = mask.view(workload.batch, position.size(1), workload.batch, end.size(1))
    for b in range(workload.batch):
        assert torch.equal(blocks[b, :, b], local[b])
    assert int(mask.sum()) == int(local.sum()) == useful_pairs(tree, workload.query_index)
