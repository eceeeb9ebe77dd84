"""Every op of tensors with arguments that it takes, by name."""

import torch

import regrow
from named_trees import grpo_group

ops = torch.ops.regrow

LOGITS = torch.randn(5, 8)
LSE, ENTROPY = ops.logits_row_stats(LOGITS, 1.0, None)
INDEX = torch.tensor([4, 0, 4])
OUTS, LSES = torch.randn(2, 5, 3, 4), torch.randn(2, 3, 5)
OPTIONS = {"temperature": 1.0, "softcap": None}

NATIVE = {
    "lse_merge": {"outs": OUTS, "lses": LSES, "sinks": torch.randn(3)},
    "lse_merge_bwd": {
        "dout": OUTS[0], "dlse": LSES[0], "outs": OUTS, "lses": LSES, "sinks": torch.randn(3), "out": OUTS[0],
        "lse": LSES[0],
    },
    "replay_gather": {"src": LOGITS, "index": INDEX},
    "replay_gather_out": {"src": LOGITS, "index": INDEX, "out": torch.zeros(3, 8)},
    "replay_scatter": {"src": LOGITS[:3], "index": INDEX, "num_rows": 5},
    "replay_scatter_out": {"src": LOGITS[:3], "index": INDEX, "out": torch.zeros(5, 8)},
    "logits_row_stats": {"logits": LOGITS, **OPTIONS},
    "logits_pick": {"logits": LOGITS, "lse": LSE, "target_row": INDEX, "target_token": INDEX, **OPTIONS},
    "logits_row_grad_": {
        "logits": LOGITS, "lse": LSE, "entropy": ENTROPY, "row_start": torch.tensor([0, 1, 1, 1, 1, 2]),
        "target_token": INDEX[:2], "dlogp": torch.randn(2), "dentropy": torch.randn(5), **OPTIONS,
    },
    "head_logits_out": {"hidden": LOGITS, "weight": torch.randn(7, 8), "out": torch.zeros(5, 7)},
    "head_logits_bwd": {
        "dlogits": torch.randn(5, 7), "hidden": LOGITS, "weight": torch.randn(7, 8), "dhidden": torch.zeros(5, 8),
        "dweight": torch.zeros(7, 8),
    },
    "skinny_linear": {"input": LOGITS, "weight": torch.randn(7, 8), "bias": torch.randn(7)},
}  # fmt: skip

# In Python, over those; add_matmul_ has no CPU kernel below it.
HEAD = {"hidden": LOGITS.bfloat16(), "weight": torch.randn(11, 8).bfloat16()}
ROWS = {**HEAD, "target_row": INDEX, "target_token": torch.tensor([10, 3, 3]), **OPTIONS}
TREE = {**HEAD, "parent_index": torch.tensor([-1, 0, 1, 1, 0]), "tokens": torch.tensor([1, 2, 3, 4, 10]), **OPTIONS}
NEEDS = {"need_hidden": True, "need_weight": True}
IN_PYTHON = {
    "row_logprobs": ROWS,
    "row_logprobs_bwd": {"dlogp": torch.randn(3), "dentropy": torch.randn(5), **ROWS, **NEEDS},
    "tree_logprobs": TREE,
    "tree_logprobs_bwd": {"dlogp": torch.randn(5), "dentropy": torch.randn(5), **TREE, **NEEDS},
    "add_matmul_": {"out": torch.zeros(5, 7), "a": LOGITS.bfloat16(), "b": torch.randn(8, 7).bfloat16()},
}


def _attention():
    tree = grpo_group()
    tokens = tree.num_tokens
    inputs = {name: torch.randn(tokens, heads, 16).bfloat16() for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    rest = {
        "subtree_end": tree.subtree_end, "position_ids": tree.position_ids,
        "plan": regrow.plan(tree, query_heads=4, kv_heads=2, query_index=torch.arange(tokens)),
        "query_index": torch.arange(tokens), "query_start": 0, "key_start": 0, "scale": 0.25, "window": None,
        "softcap": None, "sinks": torch.randn(4),
    }  # fmt: skip
    out, lse = ops.tree_attention_fwd(*inputs.values(), *rest.values(), False)
    backward = {"dout": out, "dlse": lse, **inputs, "out": out, "lse": lse, **rest}
    accumulators = {f"d{name}_accum": torch.zeros(t.shape) for name, t in inputs.items()}
    return {
        "tree_attention_fwd": {**inputs, **rest, "partial": False},
        "tree_attention_bwd": backward,
        "tree_attention_bwd_accum": {**backward, **accumulators},
    }


# In C++, one function for both devices.
NATIVE |= _attention()
ALL = NATIVE | IN_PYTHON


def with_strays(calls):
    """(op, name of a tensor) for each tensor that each of the calls takes beside others."""
    tensors = {op: [k for k, v in named.items() if isinstance(v, torch.Tensor)] for op, named in calls.items()}
    return [(op, name) for op, names in tensors.items() for name in names]
