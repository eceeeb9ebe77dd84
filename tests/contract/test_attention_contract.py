"""What torch asks of an op: schema, fake, autograd registration, compilation."""

import pytest
import torch

import regrow
from attention_cases import assert_same, make_case, run_regrow
from named_trees import conversation, empty, grpo_group

ops = torch.ops.regrow
TREE = conversation()


def forward_arguments(case, requires_grad=True):
    tree, options = case.tree, case.options
    q, k, v = (t.detach().clone().requires_grad_(requires_grad) for t in (case.q, case.k, case.v))
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    sinks = None if case.sinks is None else case.sinks.to(wide, copy=True).requires_grad_(requires_grad)
    index = options.get("query_index")
    plan = regrow.plan(
        tree, query_heads=q.size(1), kv_heads=k.size(1), window=options.get("window"), query_index=index,
        query_start=options.get("query_start", 0), num_queries=q.size(0) if index is None else None,
        key_start=options["key_start"], num_keys=k.size(0),
    )  # fmt: skip
    return (
        q, k, v, tree.subtree_end, tree.position_ids, plan, index, options.get("query_start", 0), options["key_start"],
        0.25, options.get("window"), options.get("softcap"), sinks, case.partial,
    )  # fmt: skip


# Plain; everything at once; scattered queries; a partial result in fp32 of bf16 inputs; nothing at all.
CASES = {
    "plain": make_case(TREE),
    "options": make_case(TREE, dtype=torch.float64, queries=(10, 60), window=9, softcap=2.0, sinks=True),
    "indexed": make_case(TREE, query_index=torch.tensor([3, 9, 70])),
    "partial": make_case(TREE, dtype=torch.bfloat16, keys=(5, 30), partial=True),
    "empty": make_case(empty(), sinks=True),
}


@pytest.mark.parametrize("name", CASES)
def test_opcheck_forward(name):
    torch.library.opcheck(ops.tree_attention_fwd.default, forward_arguments(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_backward(name):
    case = CASES[name]
    arguments = forward_arguments(case, requires_grad=False)
    q, k, v, *options, _partial = arguments
    out, lse = ops.tree_attention_fwd(*arguments)
    for dlse in (None, case.dlse.to(lse.dtype)):
        saved = (case.dout.to(out.dtype), dlse, q, k, v, out, lse, *options)
        torch.library.opcheck(ops.tree_attention_bwd.default, saved)
        buffers = [torch.zeros(t.shape, dtype=lse.dtype) for t in (q, k, v)]
        torch.library.opcheck(ops.tree_attention_bwd_accum.default, (*saved, *buffers))
        torch.library.opcheck(ops.tree_attention_bwd_accum.default, (*saved, None, None, None))


@pytest.mark.parametrize("sinks", [False, True])
def test_opcheck_merge(sinks):
    outs, lses = torch.randn(3, 5, 2, 4, requires_grad=True), torch.randn(3, 2, 5, requires_grad=True)
    sink = torch.randn(2, requires_grad=True) if sinks else None
    torch.library.opcheck(ops.lse_merge.default, (outs, lses, sink))
    out, lse = ops.lse_merge(outs, lses, sink)
    arguments = [t if t is None else t.detach() for t in (out, lse, outs, lses, sink, out, lse)]
    torch.library.opcheck(ops.lse_merge_bwd.default, tuple(arguments))


# The tree is closed over or an argument (a dataclass of tensors); rectangles and options as in a training step.
@pytest.mark.parametrize("options", [{}, {"queries": (10, 70), "keys": (0, 70), "window": 9, "sinks": True}], ids=str)
@pytest.mark.parametrize("tree_is_an_argument", [False, True])
def test_compiled_is_eager(tree_is_an_argument, options):
    torch._dynamo.reset()
    case = make_case(TREE, **options)
    expected = run_regrow(case)  # makes the plan, which the tree keeps

    def attend(q, k, v, sinks, tree=TREE):
        return regrow.tree_attention(q, k, v, tree, sinks=sinks, return_lse=True, **case.options)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    leaves = [t.detach().clone().requires_grad_() for t in (case.q, case.k, case.v, case.sinks) if t is not None]
    sinks = leaves[3] if case.sinks is not None else None
    out, lse = compiled(*leaves[:3], sinks, *([TREE] if tree_is_an_argument else []))
    gradients = torch.autograd.grad((out, lse), leaves, (case.dout, case.dlse))
    names = ["dq", "dk", "dv", "dsinks"][: len(leaves)]
    assert_same({"out": out.detach(), "lse": lse.detach().T, **dict(zip(names, gradients, strict=True))}, expected)


def test_compiling_with_a_plan_as_an_argument():
    torch._dynamo.reset()
    tree = conversation()
    case = make_case(tree)
    index = torch.tensor([3, 9, 70])
    plan = regrow.plan(tree, query_heads=4, kv_heads=2, query_index=index)
    attend = lambda q, plan: regrow.tree_attention(q, case.k, case.v, tree, query_index=index, plan=plan)  # noqa: E731
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(case.q[index], plan), attend(case.q[index], plan))


# No plan for this tree; none is ever kept for scattered queries.
@pytest.mark.parametrize("index", [None, torch.tensor([3, 9, 70])], ids=["interval", "indexed"])
def test_compiling_without_a_plan_says_what_to_do(index):
    torch._dynamo.reset()
    tree = grpo_group()
    case = make_case(tree, query_index=index)
    attend = lambda q: regrow.tree_attention(q, case.k, case.v, tree, query_index=index)  # noqa: E731
    with pytest.raises(RuntimeError, match=r"no plan for this call.*call regrow.plan first"):
        torch.compile(attend, fullgraph=True, backend="aot_eager")(case.q)


def test_plans_are_kept_by_the_tree_and_by_rectangle():
    tree = grpo_group()
    first = regrow.plan(tree, query_heads=4, kv_heads=2)
    assert regrow.plan(tree, query_heads=8, kv_heads=4) is first  # the same heads a group
    assert regrow.plan(tree, query_heads=4, kv_heads=2, num_queries=tree.num_tokens) is first
    assert regrow.plan(tree, query_heads=4, kv_heads=2, window=3) is not first
    assert regrow.plan(tree, query_heads=4, kv_heads=1) is not first
    assert first.dtype == torch.int32 and first.dim() == 1


def test_the_function_class_alone_gives_gradients():
    arguments, same = forward_arguments(CASES["options"]), forward_arguments(CASES["options"])
    results, expected = regrow.TreeAttention.apply(*arguments), ops.tree_attention_fwd(*same)
    assert_same_gradients(results, arguments, expected, same)


def test_the_merges_function_class_alone_gives_gradients():
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(shape, generator=generator) for shape in ((3, 5, 2, 4), (3, 2, 5), (2,))]
    arguments = [t.requires_grad_() for t in arguments]
    same = [t.detach().clone().requires_grad_() for t in arguments]
    assert_same_gradients(regrow.LseMerge.apply(*arguments), arguments, regrow.lse_merge(*same), same)


def assert_same_gradients(results, arguments, expected, same):
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t) for t in results]
    gradients = [
        torch.autograd.grad(outputs, [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad], weights)
        for outputs, inputs in ((results, arguments), (expected, same))
    ]
    assert all(torch.equal(a, b) and a.any() for a, b in zip(*gradients, strict=True))


def test_compiled_with_inductor():
    """The default backend: code of its own around the op, forward and backward."""
    torch._dynamo.reset()
    tree = conversation()
    case = make_case(tree)
    regrow.plan(tree, query_heads=4, kv_heads=2)
    attend = lambda q, k, v: regrow.tree_attention(2 * q, k, v, tree).square()  # noqa: E731

    def differentiated(function):
        leaves = [t.detach().clone().requires_grad_() for t in (case.q, case.k, case.v)]
        out = function(*leaves)
        return out, *torch.autograd.grad(out, leaves, case.dout)

    compiled = differentiated(torch.compile(attend, fullgraph=True, backend="inductor"))
    torch.testing.assert_close(compiled, differentiated(attend), rtol=0, atol=1e-5)
