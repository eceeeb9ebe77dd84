"""Every error of the attention ops says what is wrong: one call, one message."""

import pytest
import torch

import regrow
from attention_cases import make_case
from named_trees import conversation, grpo_group

ops = torch.ops.regrow
TREE = conversation()  # 78 tokens
CASE = make_case(TREE, heads=(4, 2), head_dim=16, value_dim=24)
Q, K, V = CASE.q, CASE.k, CASE.v
PLAN = regrow.plan(TREE, query_heads=4, kv_heads=2)
INDEX = torch.tensor([3, 9, 70])


def attend(q=Q, k=K, v=V, tree=TREE, plan=PLAN, **options):
    return regrow.tree_attention(q, k, v, tree, plan=plan, **options)


def forward(**changes):
    arguments = dict(
        q=Q, k=K, v=V, subtree_end=TREE.subtree_end, position_ids=TREE.position_ids, plan=PLAN, query_index=None,
        query_start=0, key_start=0, scale=0.25, window=None, softcap=None, sinks=None, partial=False,
    )  # fmt: skip
    return ops.tree_attention_fwd(**(arguments | changes))


def backward(accumulate=False, **changes):
    out, lse = forward()
    arguments = dict(
        dout=out, dlse=lse, q=Q, k=K, v=V, out=out, lse=lse, subtree_end=TREE.subtree_end,
        position_ids=TREE.position_ids, plan=PLAN, query_index=None, query_start=0, key_start=0, scale=0.25,
        window=None, softcap=None, sinks=None,
    )  # fmt: skip
    if accumulate:
        arguments |= dict(dq_accum=None, dk_accum=torch.zeros_like(K), dv_accum=torch.zeros_like(V))
        return ops.tree_attention_bwd_accum(**(arguments | changes))
    return ops.tree_attention_bwd(**(arguments | changes))


def merge_backward(**changes):
    outs, lses = torch.randn(2, 5, 3, 4), torch.randn(2, 3, 5)
    arguments = dict(dout=outs[0], dlse=None, outs=outs, lses=lses, sinks=None, out=outs[0], lse=lses[0])
    return ops.lse_merge_bwd(**(arguments | changes))


def strided(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


# Shapes, dtypes and options of a call, in the order in which the code checks them.
CALLS = {
    r"q must be \[rows, heads, dim\], got shape \[78, 64\]": lambda: forward(q=Q.flatten(1)),
    r"k must be \[rows, heads, dim\]": lambda: forward(k=K[0]),
    r"v must be \[rows, heads, dim\]": lambda: forward(v=V[0]),
    r"q, k and v must be \[rows, heads, dim\], got shapes": lambda: attend(q=Q[0]),
    r"q must be contiguous in its last dimension, got stride 4: call .contiguous\(\)": lambda: attend(q=strided(Q)),
    r"q must be float64, float32, bfloat16 or float16, got int64": lambda: attend(q=Q.long()),
    r"q must be float64, float32, bfloat16 or float16, got another dtype": lambda: attend(q=Q.to(torch.complex64)),
    r"the 3 query heads must be a positive multiple of the 2 KV heads": lambda: attend(q=Q[:, :3]),
    r"the 0 query heads must be a positive multiple of the 2 KV heads": lambda: attend(q=Q[:, :0]),
    r"the 4 query heads must be a positive multiple of the 0 KV heads": lambda: attend(k=K[:, :0], v=V[:, :0]),
    r"v must have the rows and heads of k, \[78, 2, 16\], got \[78, 1, 24\]": lambda: attend(v=V[:, :1]),
    r"v must have the rows and heads of k, \[78, 2, 16\], got \[77, 2, 24\]": lambda: attend(v=V[1:]),
    r"q and k must have one head dim, got 16 and 8": lambda: attend(k=K[..., :8]),
    r"head dim of q and k must be a multiple of 8 up to 256, got 12: pad": lambda: attend(q=Q[..., :12], k=K[..., :12]),
    r"head dim of v must be a multiple of 8 up to 256, got 4: pad it": lambda: attend(v=V[..., :4]),
    r"head dim of v must be a multiple of 8 up to 256, got 264": lambda: attend(v=torch.zeros(78, 2, 264)),
    r"head dim of v must be a multiple of 8 up to 256, got 0": lambda: attend(v=V[..., :0]),
    r"q, k and v must have one dtype, got float32, bfloat16 and float32": lambda: attend(k=K.bfloat16()),
    r"window must be positive, or None for none, got 0": lambda: attend(window=0),
    r"window must be positive, or None for none, got -3": lambda: attend(window=-3, plan=None),
    r"softcap must be positive and below 1e\+38, or None, got 0": lambda: attend(softcap=0),
    r"softcap must be positive and below 1e\+38, or None, got inf": lambda: attend(softcap=float("inf")),
    r"softcap must be positive and below 1e\+38, or None, got nan": lambda: attend(softcap=float("nan")),
    r"q, k and v must be tensors, got ndarray, Tensor, Tensor": lambda: attend(q=Q.numpy()),
    r"window must be a whole number of positions, or None for none, got 2.5": lambda: attend(window=2.5),
    r"query_index already says where the queries stand: .*, got 3 and None": lambda: attend(
        q=Q[:3], query_index=INDEX, query_start=3
    ),
    r"scale must be finite and below 1e\+38, got inf": lambda: attend(scale=float("inf")),
    r"scale must be finite and below 1e\+38, got nan": lambda: attend(scale=float("nan")),
    r"sinks must have shape \[4\], got \[2\]": lambda: attend(sinks=torch.zeros(2)),
    r"sinks must be contiguous and of the accumulation dtype": lambda: forward(sinks=torch.zeros(4).double()),
    r"a partial result leaves the sinks out: pass them to regrow.lse_merge": lambda: attend(
        sinks=torch.zeros(4), partial=True
    ),
    r"a partial result leaves the sinks out: pass them to lse_merge": lambda: forward(
        sinks=torch.zeros(4), partial=True
    ),
    r"subtree_end must be a contiguous 1-D int32 tensor": lambda: forward(subtree_end=TREE.subtree_end.long()),
    r"position_ids must be a contiguous 1-D int64 tensor": lambda: forward(position_ids=TREE.subtree_end),
    r"subtree_end has 77 tokens, position_ids 78": lambda: forward(subtree_end=TREE.subtree_end[1:]),
    r"plan must be a contiguous int32 tensor as regrow.plan makes it": lambda: forward(plan=PLAN.long()),
    r"query_index has 3 entries, q has 78 rows": lambda: attend(query_index=INDEX),
    r"query_index must be a contiguous 1-D int64 tensor": lambda: attend(q=Q[:3], query_index=INDEX.int()),
}

# Any one argument elsewhere would make the dispatcher choose the kernel that computes nothing.
DEVICE_CALLS = {
    r"q is on cpu and tree on meta: move them to one device with .to\(device\)": lambda: attend(tree=TREE.to("meta")),
    r"q is on cpu and tree on meta: move": lambda: attend(tree=TREE.to("meta"), plan=None),
    r"q is on meta and k on cpu: move": lambda: attend(q=Q.to("meta")),
    r"q is on cpu and v on meta: move": lambda: attend(v=V.to("meta")),
    r"q is on cpu and plan on meta: move": lambda: attend(plan=PLAN.to("meta")),
    r"q is on cpu and query_index on meta: move": lambda: attend(q=Q[:3], query_index=INDEX.to("meta")),
    r"q is on cpu and sinks on meta: move": lambda: attend(sinks=torch.zeros(4, device="meta")),
    r"q is on cpu and dk_accum on meta: move": lambda: attend(dk_accum=K.to("meta"), dv_accum=V),
    r"q is on cpu and dv_accum on meta: move": lambda: attend(dk_accum=K, dv_accum=V.to("meta")),
    r"q is on cpu and subtree_end on meta: move": lambda: forward(subtree_end=TREE.subtree_end.to("meta")),
    r"q is on cpu and position_ids on meta: move": lambda: forward(position_ids=TREE.position_ids.to("meta")),
    r"dout is on cpu and lse on meta: move": lambda: backward(lse=torch.zeros(4, 78, device="meta")),
    r"dout is on cpu and dq_accum on meta: move": lambda: backward(True, dq_accum=Q.to("meta")),
    r"outs is on cpu and lses on meta: move": lambda: regrow.lse_merge(
        torch.zeros(2, 5, 3, 4), torch.zeros(2, 3, 5, device="meta")
    ),
    r"outs is on cpu and sinks on meta: move": lambda: ops.lse_merge(
        torch.zeros(2, 5, 3, 4), torch.zeros(2, 3, 5), torch.zeros(3, device="meta")
    ),
    r"dout is on cpu and out on meta: move": lambda: merge_backward(out=torch.zeros(5, 3, 4, device="meta")),
}

# The arguments that only the backward has.
BACKWARD_CALLS = {
    r"dout must have shape \[78, 4, 24\], got \[78, 4, 16\]": lambda: backward(dout=Q),
    r"out must have shape \[78, 4, 24\], got \[78, 4, 16\]": lambda: backward(out=Q),
    r"dout must have the dtype of q or the accumulation dtype, got float64": lambda: backward(dout=CASE.dout.double()),
    r"out must have the dtype of q or the accumulation dtype, got bfloat16": lambda: backward(out=CASE.dout.bfloat16()),
    r"lse must have shape \[4, 78\], got \[78, 4\]": lambda: backward(lse=torch.zeros(78, 4)),
    r"lse must be contiguous and of the accumulation dtype": lambda: backward(lse=torch.zeros(78, 4).T),
    r"dlse must have shape \[4, 78\], got \[4, 77\]": lambda: backward(dlse=torch.zeros(4, 77)),
    r"dlse must have the dtype of lse": lambda: backward(dlse=torch.zeros(4, 78).double()),
    r"dq_accum must have shape \[78, 4, 16\]": lambda: backward(True, dq_accum=K),
    r"dk_accum must have shape \[78, 2, 16\], got \[78, 2, 24\]": lambda: backward(True, dk_accum=V),
    r"dv_accum must have shape \[78, 2, 24\], got \[78, 2, 16\]": lambda: backward(True, dv_accum=K),
    r"dk_accum must be contiguous and float32": lambda: backward(True, dk_accum=K.double()),
    r"dv_accum must be contiguous and float32": lambda: backward(True, dv_accum=strided(V)),
    r"dk_accum and dv_accum go together: pass both or neither": lambda: backward(True, dk_accum=None),
    r"go together: pass both or neither": lambda: attend(dk_accum=torch.zeros_like(K)),
    r"must be contiguous torch.float32 of shape \[78, 2, 16\], got torch.float64": lambda: attend(
        dk_accum=K.double(), dv_accum=V
    ),
    r"of shape \[78, 2, 24\], got torch.float32 of shape \[78, 2, 16\]": lambda: attend(
        dk_accum=torch.zeros_like(K), dv_accum=torch.zeros_like(K)
    ),
    r"dk_accum is a buffer that backward adds into: it must not require a gradient": lambda: attend(
        dk_accum=torch.zeros_like(K).requires_grad_(), dv_accum=torch.zeros_like(V)
    ),
}

# regrow.plan checks what only it can see: the rectangle on the axis.
PLAN_CALLS = {
    r"query_index already says where the queries stand: .*, got 0 and 7": dict(query_index=INDEX, num_queries=7),
    r"query_index already says where the queries stand: .*, got 3 and None": dict(query_index=INDEX, query_start=3),
    r"window must be a whole number of positions, or None for none, got 2.5": dict(window=2.5),
    r"the 3 query heads must be a positive multiple of the 2 KV heads": dict(query_heads=3, kv_heads=2),
    r"the 4 query heads must be a positive multiple of the 0 KV heads": dict(kv_heads=0),
    r"window must be positive, or None for none, got 0": dict(window=0),
    r"keys from 4611686018427387904 leave the axis": dict(key_start=2**62, num_keys=2**62),
    r"queries from 4611686018427387904 leave the axis": dict(query_start=2**62, num_queries=2**62),
    r"10 keys from 70 leave the axis of 78 tokens": dict(key_start=70, num_keys=10),
    r"79 keys from -1 leave the axis": dict(key_start=-1, num_keys=79),
    r"keys from 80 leave the axis": dict(key_start=80),
    r"10 queries from 70 leave the axis of 78 tokens": dict(query_start=70, num_queries=10),
    r"79 queries from -1 leave the axis": dict(query_start=-1, num_queries=79),
    r"queries from 80 leave the axis": dict(query_start=80),
    r"query_index\[1\] is 78, the axis has 78 tokens": dict(query_index=torch.tensor([3, 78])),
    r"query_index\[0\] is -1, the axis has 78 tokens": dict(query_index=torch.tensor([-1, 3])),
    r"query_index must be sorted, but entry 2 is 4 after 9": dict(query_index=torch.tensor([3, 9, 4])),
    r"query_index must be a 1-D int64 tensor, got torch.int32 of shape \[3\]": dict(query_index=INDEX.int()),
    r"query_index must be a 1-D int64 tensor, got torch.int64 of shape \[3, 1\]": dict(query_index=INDEX[:, None]),
    r"query_index must be a 1-D int64 tensor, got list": dict(query_index=[3, 9]),
}

# A plan that was made for something else says for what.
MISMATCHES = {
    r"not a plan made by regrow.plan for this device; make one with regrow.plan\(tree, ...\)": lambda: attend(
        plan=torch.zeros(99, dtype=torch.int32)
    ),
    r"it is not a plan made": lambda: attend(plan=PLAN[:0]),
    r"it is not a plan made by": lambda: attend(plan=PLAN[:-1]),
    r"made for an axis of 146, the call has 78": lambda: attend(plan=plan_of(grpo_group())),
    r"made for another tree": lambda: attend(plan=plan_of(regrow.PrefixTree.from_nodes([-1], [78]))),
    r"made for num_queries 70, the call has 78": lambda: attend(plan=plan_of(TREE, num_queries=70)),
    r"made for num_keys 70, the call has 78": lambda: attend(plan=plan_of(TREE, num_keys=70)),
    r"made for query_start 0, the call has 1": lambda: attend(
        q=Q[1:], query_start=1, plan=plan_of(TREE, num_queries=77)
    ),
    r"made for key_start 0, the call has 1": lambda: attend(
        k=K[1:], v=V[1:], key_start=1, plan=plan_of(TREE, num_keys=77)
    ),
    r"made for window 7, the call has 0": lambda: attend(plan=plan_of(TREE, window=7)),
    r"made for window 0, the call has 7": lambda: attend(window=7),
    r"made for indexed queries 1, the call has 0": lambda: attend(q=Q[:3], plan=plan_of(TREE, query_index=INDEX)),
    r"made for another query_index": lambda: attend(
        q=Q[:3], query_index=INDEX, plan=plan_of(TREE, query_index=INDEX + 1)
    ),
    r"made for query tiles of 64, the call has 8": lambda: attend(q=torch.zeros(78, 17, 16), k=K[:, :1], v=V[:, :1]),
}

MERGE_CALLS = {
    r"outs must be \[partials, Tq, Hq, Dv\], got shape \[5, 3, 4\]": lambda: regrow.lse_merge(
        torch.zeros(5, 3, 4), torch.zeros(2, 3, 5)
    ),
    r"lses must have shape \[2, 3, 5\], got \[2, 5, 3\]": lambda: regrow.lse_merge(
        torch.zeros(2, 5, 3, 4), torch.zeros(2, 5, 3)
    ),
    r"outs and lses must both be float32 or both float64, got bfloat16 and float32": lambda: regrow.lse_merge(
        torch.zeros(2, 5, 3, 4).bfloat16(), torch.zeros(2, 3, 5)
    ),
    r"both be float32 or both float64, got float32 and float64": lambda: regrow.lse_merge(
        torch.zeros(2, 5, 3, 4), torch.zeros(2, 3, 5).double()
    ),
    r"sinks must have shape \[3\], got \[2\]": lambda: regrow.lse_merge(
        torch.zeros(2, 5, 3, 4), torch.zeros(2, 3, 5), torch.zeros(2)
    ),
    r"dout must have shape \[5, 3, 4\]": lambda: merge_backward(dout=torch.zeros(5, 3, 3)),
    r"out must have shape \[5, 3, 4\]": lambda: merge_backward(out=torch.zeros(5, 3, 3)),
    r"out must have the dtype of outs": lambda: merge_backward(out=torch.zeros(5, 3, 4).double()),
    r"lse must have shape \[3, 5\]": lambda: merge_backward(lse=torch.zeros(3, 4)),
    r"lse must have the dtype of outs": lambda: merge_backward(lse=torch.zeros(3, 5).double()),
    r"dlse must have shape \[3, 5\]": lambda: merge_backward(dlse=torch.zeros(3, 4)),
    r"dlse must have the dtype of outs": lambda: merge_backward(dlse=torch.zeros(3, 5).double()),
}


def plan_of(tree, query_heads=4, kv_heads=2, **options):
    return regrow.plan(tree, query_heads=query_heads, kv_heads=kv_heads, **options)


ALL = CALLS | DEVICE_CALLS | BACKWARD_CALLS | MISMATCHES | MERGE_CALLS


@pytest.mark.parametrize("message", ALL)
def test_call(message):
    with pytest.raises(ValueError, match=message):
        ALL[message]()


@pytest.mark.parametrize("message", PLAN_CALLS)
def test_plan(message):
    with pytest.raises(ValueError, match=message):
        plan_of(TREE, **PLAN_CALLS[message])


# Past the dispatcher's choice, the kernels themselves refuse what is not in the CPU's memory.
def test_the_kernels_take_tensors_of_one_device_only():
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    case = (Q, K, V, TREE.subtree_end, TREE.position_ids, PLAN.to("meta"), None, 0, 0, 0.25, None, None, None, False)
    with pytest.raises(ValueError, match=r"q is on cpu and plan on a device of another kind: move them"):
        ops.tree_attention_fwd.default.redispatch(on_cpu, *case)
    outs, lses = torch.zeros(2, 5, 3, 4), torch.zeros(2, 3, 5, device="meta")
    with pytest.raises(
        ValueError, match="outs is on cpu and lses on a device of another kind: move them to one device"
    ):
        ops.lse_merge.default.redispatch(on_cpu, outs, lses, None)


# The same rectangles without a plan: the public function makes one, and says so too.
@pytest.mark.parametrize(
    "message, options",
    [
        (r"78 queries from 1 leave the axis of 78 tokens", {"query_start": 1}),
        (r"78 keys from 1 leave the axis of 78 tokens", {"key_start": 1}),
        (r"query_index must be a 1-D int64 tensor", {"query_index": torch.zeros(78)}),
    ],
)
def test_the_public_function_without_a_plan(message, options):
    with pytest.raises(ValueError, match=message):
        attend(plan=None, **options)


# Work that was read as words and not as a plan once crashed or hung the kernels.
@pytest.mark.parametrize("word", [10, 17, 22, -1])
def test_a_plan_that_was_written_to(word):
    plan = PLAN.clone()
    plan[word] += 1
    with pytest.raises(ValueError, match="its words have changed since it was made"):
        attend(plan=plan)


def test_a_plan_made_in_inference_mode_serves_training():
    tree = regrow.PrefixTree.from_sequences([[5, 6, 7], [5, 6, 8, 9]])
    q, k = torch.zeros(5, 2, 8, requires_grad=True), torch.zeros(5, 1, 8)
    with torch.inference_mode():
        regrow.tree_attention(q, k, k, tree)
    regrow.tree_attention(q, k, k, tree).sum().backward()
    assert q.grad is not None
