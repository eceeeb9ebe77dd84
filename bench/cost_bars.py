"""What a call costs beside its arithmetic: overhead in microseconds, memory in bytes of torch's allocator."""

import time
from statistics import median

import torch
from report import Row

import regrow
from regrow.live_bytes import peak_bytes


def group_tree(prompt, responses, length):
    return regrow.PrefixTree.from_nodes([-1] + [0] * responses, [prompt] + [length] * responses)


def overhead(calls=2000):
    """One query and one key of an axis of 4,096 tokens and 64 nodes: everything a call does but the attention."""
    tree = group_tree(1576, 63, 40)
    q, k = torch.randn(1, 8, 64), torch.randn(1, 2, 64)
    plan = regrow.plan(tree, query_heads=8, kv_heads=2, num_queries=1, num_keys=1)
    rows = []
    for name, make in (
        ("plan passed", lambda: regrow.tree_attention(q, k, k, tree, plan=plan)),
        ("plan from the tree's cache", lambda: regrow.tree_attention(q, k, k, tree)),
    ):
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            make()
            seconds.append(time.perf_counter() - start)
        rows.append(Row("overhead, 4,096 tokens, 64 nodes", name, median(seconds) * 1e6, "us", aim=20, lower=True))
    return rows


def memory():
    """Forward + backward at T and 2 T, up to 131,072 tokens, by allocator bytes; outputs and gradients apart.

    No window: every key is seen by its whole subtree. Branches are short, so that pairs grow no faster than tokens and
    the measurement takes seconds.
    """
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        beyond = {}
        for num_tokens in (32768, 65536, 131072):
            tree = group_tree(2048, (num_tokens - 2048) // 64, 64)
            q, k, v = (torch.randn(num_tokens, heads, 64, dtype=dtype, requires_grad=True) for heads in (1, 1, 1))
            regrow.plan(tree, query_heads=1, kv_heads=1)

            def run(q=q, k=k, v=v, tree=tree):
                out = regrow.tree_attention(q, k, v, tree)
                return out, torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

            results = 5 * q.numel() * q.element_size()  # out, its gradient, dq, dk, dv
            beyond[num_tokens] = peak_bytes(run)[1] - results
        name = str(dtype).removeprefix("torch.")
        label = f"memory beyond inputs and outputs, {name}, one head of 64, no window: prompt 2,048 + n x 64"
        for num_tokens, count in beyond.items():
            rows.append(
                Row(label, f"T = {num_tokens:,}", count / num_tokens, "B/token", note=f"{count / 2**20:.1f} MiB")
            )
        growth = beyond[131072] / beyond[65536]
        rows.append(Row(label, "growth from 65,536 to 131,072", growth, "x", bar=2.05, lower=True, note="2 is linear"))
    return rows


def run(rounds=5):
    """All rows of this file."""
    return [*overhead(), *memory()]
