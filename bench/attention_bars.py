"""Tree attention on the CPU against torch's SDPA: the workloads and the bars of the project."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from interleaved import RegisterLoop, interleave, is_tie, ratio
from report import Row

import regrow
from regrow.reference import visible

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from attention_cases import assert_matches_oracle, make_case
from plan_decoder import Plan

QUERY_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128


def useful_operations(tree):
    """Of forward and backward, over (query, ancestor) pairs only: 2 + 5 products of 2 * head_dim operations each."""
    pairs, _ = tree.attention_pairs()
    return 7 * 2 * HEAD_DIM * QUERY_HEADS * pairs


def inputs(num_tokens, dtype):
    shapes = (QUERY_HEADS, KV_HEADS, KV_HEADS, QUERY_HEADS)
    tensors = [torch.randn(num_tokens, heads, HEAD_DIM).to(dtype) for heads in shapes]
    return [t.requires_grad_() for t in tensors[:3]], tensors[3]


def packed(tree, tensors, gradient):
    """Forward and backward on the tree."""
    out = regrow.tree_attention(*tensors, tree)
    return out, torch.autograd.grad(out, tensors, gradient)


def masked(tree, tensors, gradient):
    """SDPA with a boolean tree mask; the mask is made once, outside."""
    everyone = torch.arange(tree.num_tokens)
    mask = visible(tree.subtree_end, tree.position_ids, everyone, everyone)

    def run():
        q, k, v = (t.transpose(0, 1)[None] for t in tensors)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1), torch.autograd.grad(out, tensors, gradient.transpose(0, 1)[None])

    return run


def replicated(tree, tensors, gradient):
    """SDPA, causal, over every sequence whole: one batch, for trees of equal paths."""
    batch = tree.num_sequences
    dense = [tree.unpack(t.detach()).view(batch, -1, *t.shape[1:]) for t in (*tensors, gradient)]
    dense = [t.transpose(1, 2).contiguous() for t in dense]
    leaves = [t.requires_grad_() for t in dense[:3]]

    def run():
        out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2), torch.autograd.grad(out, leaves, dense[3])

    return run


def check_against_oracle():
    """The same code path on a smaller tree, results and gradients, and the peers against it, before anything is timed.

    Its paths are long enough that query tiles are split and merged, and key tiles take turns.
    """
    tree = regrow.PrefixTree.from_nodes([-1] + [0] * 4, [2100] + [64] * 4)
    plan = Plan(regrow.plan(tree, query_heads=QUERY_HEADS, kv_heads=KV_HEADS))
    assert plan.header.num_slots and any(item.turn for item in plan.backward), "a tree with split tiles is needed"
    for dtype in (torch.float32, torch.bfloat16):
        heads = QUERY_HEADS // KV_HEADS, 1  # one group: plans and tiles depend on no more
        assert_matches_oracle(make_case(tree, dtype=dtype, heads=heads, head_dim=HEAD_DIM, value_dim=HEAD_DIM))
        check_peers(tree, dtype)


def check_peers(tree, dtype):
    """They compute the same attention: by the norm of the difference, since none of them is the truth."""
    tensors, gradient = inputs(tree.num_tokens, dtype)
    ours, _ = packed(tree, tensors, gradient)
    for peer in (masked, replicated):
        theirs, _ = peer(tree, tensors, gradient)()
        same = ours if theirs.shape == ours.shape else tree.unpack(ours).view(theirs.shape)
        same, theirs = same.detach().double(), theirs.detach().double()
        difference = float((theirs - same).norm() / same.norm())
        bound = 16 * torch.finfo(dtype).eps
        assert difference <= bound, (
            f"{peer.__name__}, {dtype}: off by {difference:.2g} of the norm, at most {bound:.2g}"
        )


def workload(name, tree, peers, dtype, rounds, bars):
    """Rows of one tree and dtype; bars: measure -> (bar, aim)."""
    tensors, gradient = inputs(tree.num_tokens, dtype)
    implementations = {"regrow": lambda: packed(tree, tensors, gradient)}
    implementations |= {peer.__name__: peer(tree, tensors, gradient) for peer in peers}
    loop = RegisterLoop(dtype)
    times = interleave(implementations | {"register loop": loop}, rounds)
    label = f"{name}, {str(dtype).removeprefix('torch.')}"
    rows = [
        Row(label, f"{run} forward + backward", times[run].median, "s", note=f"± {times[run].spread:.0%}")
        for run in implementations
    ]
    for peer in (peer.__name__ for peer in peers):
        tie = is_tie(times, peer, "regrow")
        rows.append(Row(label, f"against {peer}", ratio(times, peer, "regrow"), "x", *bars[peer], tie=tie))
    rate = useful_operations(tree) / times["regrow"].best
    if rate > loop.peak:
        raise RuntimeError(
            f"{label}: {rate / 1e9:.0f} GFLOP/s are above the register loop's {loop.peak / 1e9:.0f}: "
            "the machine's speed changed meanwhile, run it again with more --rounds"
        )
    rows.append(Row(label, "useful rate, best", rate / 1e9, "GFLOP/s", note=f"register loop {loop.peak / 1e9:.0f}"))
    rows.append(Row(label, "share of the register loop", rate / loop.peak, "", *bars.get("share", (None, None))))
    return rows


def run(rounds=5):
    """All rows of tree attention."""
    torch.manual_seed(0)
    check_against_oracle()
    group = regrow.PrefixTree.from_nodes([-1] + [0] * 8, [4096] + [256] * 8)
    chain = regrow.PrefixTree.from_nodes([-1], [4096])
    branches = regrow.PrefixTree.from_nodes([-1] + [0] * 2048, [512] + [1] * 2048)
    spine = [-1, *(2 * (i // 2) for i in range(511))]  # a 4-token leaf beside each 4-token step down
    comb = regrow.PrefixTree.from_nodes(spine, [4] * 512)
    low, half = torch.float32, torch.bfloat16
    return [
        *workload("prompt 4,096 + 8 x 256", group, [masked, replicated], low, rounds,
                  {"masked": (2.2, 3.5), "replicated": (5, 8), "share": (0.38, 0.60)}),
        *workload("prompt 4,096 + 8 x 256", group, [masked, replicated], half, rounds,
                  {"masked": (2.5, 4), "replicated": (6, 9), "share": (0.35, 0.50)}),
        *workload("chain 4,096", chain, [replicated], low, rounds, {"replicated": (1.2, 1.8)}),
        *workload("chain 4,096", chain, [replicated], half, rounds, {"replicated": (1.3, 2)}),
        *workload("2,048 single tokens under 512", branches, [masked], low, rounds, {"masked": (1, 2)}),
        *workload("2,048 single tokens under 512", branches, [masked], half, rounds, {"masked": (1, 2)}),
        *workload("comb of depth 256, 4-token nodes", comb, [masked], low, rounds, {"masked": (1, 2)}),
        *workload("comb of depth 256, 4-token nodes", comb, [masked], half, rounds, {"masked": (1, 2)}),
    ]  # fmt: skip
