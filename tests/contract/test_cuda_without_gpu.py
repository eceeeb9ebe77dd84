"""What a machine without a GPU can show of CUDA: shapes and errors on fake tensors, tracing, plans."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

import regrow
from named_trees import conversation, grpo_group
from op_arguments import ALL, with_strays
from regrow import plans
from regrow.attention import _TreeAttentionInto

ops = torch.ops.regrow
DEVICE = torch.device("cuda:0")


def fake(value, device=DEVICE):
    """The tensor's shape, strides and dtype on a device that need not exist; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def tensors(result):
    return [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]


def describe(t):
    return t.shape, t.stride(), t.dtype


@pytest.mark.parametrize("name", [name for name in ALL if name != "add_matmul_"])
def test_fakes(name):
    op, arguments = getattr(ops, name), ALL[name].values()
    expected = op(*(v.clone() if isinstance(v, torch.Tensor) else v for v in arguments))
    with FakeTensorMode():
        results = tensors(op(*map(fake, arguments)))
    assert [describe(t) for t in results] == [describe(t) for t in tensors(expected)]
    assert all(t.device == DEVICE for t in results)


@pytest.mark.parametrize("name, stray", [pair for pair in with_strays(ALL) if pair != ("logits_row_stats", "logits")])
@pytest.mark.parametrize("elsewhere", ["cpu", "cuda:1"])
def test_fakes_ask_for_one_device(name, stray, elsewhere):
    with FakeTensorMode():
        arguments = {k: fake(v, elsewhere if k == stray else DEVICE) for k, v in ALL[name].items()}
        with pytest.raises(ValueError, match=rf"on {elsewhere}.*move them to one device") as error:
            getattr(ops, name)(*arguments.values())
    assert stray in str(error.value)


class Context:
    """Of an autograd.Function whose backward is called by hand: the engine asks a device that is not there."""

    def __init__(self, arguments):
        self.needs_input_grad = [isinstance(t, torch.Tensor) and t.is_floating_point() for t in arguments]

    def save_for_backward(self, *saved):
        self.saved_tensors = saved

    def set_materialize_grads(self, _):
        pass


FUNCTIONS = {
    "tree_attention_fwd": regrow.TreeAttention,
    "lse_merge": regrow.LseMerge,
    "replay_gather": regrow.ReplayGather,
    "replay_scatter": regrow.ReplayScatter,
    "row_logprobs": regrow.RowLogprobs,
    "tree_logprobs": regrow.TreeLogprobs,
}


ONE, EACH_OF_TWO = [(True,)], [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize(
    "name, wanted",
    [(name, wanted) for name in FUNCTIONS for wanted in (ONE if name.startswith("replay") else EACH_OF_TWO)],
    ids=str,
)
def test_autograd_formulas(name, wanted):
    function = FUNCTIONS[name]
    with FakeTensorMode():
        arguments = tuple(map(fake, ALL[name].values()))
        context = Context(arguments)
        results = function.forward(*arguments)
        function.setup_context(context, arguments, results)
        outputs = [torch.empty_like(t) if want else None for t, want in zip(tensors(results), wanted, strict=True)]
        gradients = function.backward(context, *outputs)
    assert len(gradients) == len(arguments)
    for argument, gradient, needed in zip(arguments, gradients, context.needs_input_grad, strict=True):
        assert (gradient is not None) == needed
        if needed:
            assert (gradient.shape, gradient.dtype, gradient.device) == (argument.shape, argument.dtype, DEVICE)


def test_autograd_formula_of_accumulators():
    with FakeTensorMode():
        arguments = [fake(v) for v in ALL["tree_attention_fwd"].values()]
        q, k, v = arguments[:3]
        context = Context(arguments)
        accumulators = (torch.empty_like(k, dtype=torch.float32), torch.empty_like(v, dtype=torch.float32))
        out, lse = _TreeAttentionInto.forward(context, *accumulators, *arguments)
        gradients = _TreeAttentionInto.backward(context, torch.empty_like(out), torch.empty_like(lse))
    assert [i for i, gradient in enumerate(gradients) if gradient is not None] == [2, len(gradients) - 2]
    assert (gradients[2].shape, gradients[2].dtype, gradients[2].device) == (q.shape, q.dtype, DEVICE)


def on_cuda(tree, device=DEVICE):
    moved = {name: fake(t, device) for name, t in tree._tensors() if not name.startswith("host_")}
    return replace(tree, **moved, plans={})


def attention_inputs(tree):
    return [torch.empty(tree.num_tokens, heads, 64, dtype=torch.bfloat16, device=DEVICE) for heads in (4, 2, 2)]


PLACE = dict(query_heads=4, kv_heads=2, head_dim=64, window=None, query_start=0, key_start=0)


def plan_key(tree):
    return plans._key(tree, num_queries=tree.num_tokens, num_keys=tree.num_tokens, **PLACE)


# Traced in full, with the plan that the tree keeps, and run on the fakes again.
@pytest.mark.parametrize("name", ["tree_attention", "lse_merge", "replay", "row_logprobs", "tree_logprobs"])
def test_compile(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    with FakeTensorMode():
        tree = on_cuda(replace(conversation(), tokens=torch.zeros(conversation().num_tokens, dtype=torch.int64)))
        tree.plans[plan_key(tree)] = torch.empty((64, 100), dtype=torch.int32, device=DEVICE)
        q, k, v = attention_inputs(tree)
        hidden, weight = (torch.empty(rows, 64, device=DEVICE) for rows in (tree.num_tokens, 100))
        index, outs = torch.empty(7, dtype=torch.int64, device=DEVICE), torch.empty(2, 9, 4, 64, device=DEVICE)
        lses = torch.empty(2, 4, 9, device=DEVICE)
        function, results = {
            "tree_attention": (lambda: regrow.tree_attention(2 * q, k, v, tree, return_lse=True), 2),
            "lse_merge": (lambda: regrow.lse_merge(outs * 2, lses), 2),
            "replay": (lambda: regrow.replay_scatter(regrow.replay_gather(q, index), index, 12), 1),
            "row_logprobs": (lambda: regrow.row_logprobs(hidden * 2, weight, index, index), 2),
            "tree_logprobs": (lambda: regrow.tree_logprobs(hidden * 2, weight, tree, return_entropy=True), 2),
        }[name]
        compiled = tensors(torch.compile(function, backend=backend, fullgraph=True)())
        expected = tensors(function())
    assert len(graphs) == 1 and "torch.ops.regrow" in graphs[0].code
    assert len(compiled) == results and [describe(t) for t in compiled] == [describe(t) for t in expected]
    assert all(t.device == DEVICE for t in compiled)


def test_compile_without_a_plan():
    torch._dynamo.reset()
    with FakeTensorMode():
        tree = on_cuda(grpo_group())
        q, k, v = attention_inputs(tree)
        compiled = torch.compile(lambda: regrow.tree_attention(q, k, v, tree), backend="eager", fullgraph=True)
        with pytest.raises(RuntimeError, match=r"no plan for this call.*call regrow.plan first"):
            compiled()


def test_graph_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with FakeTensorMode():
        tree = on_cuda(grpo_group())
        inputs = attention_inputs(tree)
        with pytest.raises(RuntimeError, match=r"none can be made under graph capture: call regrow.plan first"):
            regrow.tree_attention(*inputs, tree)
        tree.plans[plan_key(tree)] = torch.empty((64, 100), dtype=torch.int32, device=DEVICE)
        assert regrow.tree_attention(*inputs, tree).device == DEVICE


def test_a_tree_on_another_device():
    with FakeTensorMode():
        q, k, v = attention_inputs(grpo_group())
        for tree, device in ((grpo_group(), "cpu"), (on_cuda(grpo_group(), "cuda:1"), "cuda:1")):
            with pytest.raises(ValueError, match=rf"q is on cuda:0 and tree on {device}: move them to one device"):
                regrow.tree_attention(q, k, v, tree)


class Chips:
    """GPUs by index; a plan "on" one of them is a tensor of the CPU, and `asked` says where each went."""

    def __init__(self, monkeypatch, **multiprocessors):
        self.asked = []
        self.multiprocessors = multiprocessors
        from_numpy = torch.from_numpy
        monkeypatch.setattr(torch.cuda, "get_device_properties", self.properties)
        monkeypatch.setattr(
            plans.torch, "from_numpy", lambda words: SimpleNamespace(to=lambda device: from_numpy(words.copy()))
        )

    def properties(self, device):
        self.asked.append(str(device))
        return SimpleNamespace(major=9, minor=0, multi_processor_count=self.multiprocessors[f"gpu{device.index}"])


def tree_of(tree, device):
    place = SimpleNamespace(device=torch.device(device), is_cuda=True)
    return SimpleNamespace(
        subtree_end=place, host_subtree_end=tree.host_subtree_end, host_position_ids=tree.host_position_ids,
        num_tokens=tree.num_tokens, plans={},
    )  # fmt: skip


def test_plans_are_kept_by_device(monkeypatch):
    long = regrow.PrefixTree.from_sequences([list(range(4000))])
    trees = [tree_of(long, "cuda:0"), tree_of(long, "cuda:1")]
    chips = Chips(monkeypatch, gpu0=132, gpu1=1)
    first, second = (regrow.plan(tree, query_heads=4, kv_heads=2, head_dim=64) for tree in trees)
    assert chips.asked == ["cuda:0", "cuda:1"]
    assert first.dim() == 2 and not (first.shape == second.shape and torch.equal(first, second))
    for tree, made in zip(trees, (first, second), strict=True):
        assert regrow.plan(tree, query_heads=4, kv_heads=2, head_dim=64) is made
        found = plans.cached_plan(tree, num_queries=long.num_tokens, num_keys=long.num_tokens, **PLACE)
        assert found is made
    assert len(chips.asked) == 2
    # What fills a chip, and the kernel, depend on the heads and on the head dim: on the CPU neither matters.
    assert regrow.plan(trees[0], query_heads=8, kv_heads=4, head_dim=64) is not first
    assert regrow.plan(trees[0], query_heads=4, kv_heads=2, head_dim=128) is not first
    assert len(trees[0].plans) == 3 and len(chips.asked) == 4


def test_a_plan_of_another_tree(monkeypatch):
    tree, other = tree_of(grpo_group(), "cuda:0"), tree_of(conversation(), "cuda:0")
    Chips(monkeypatch, gpu0=132)
    made = regrow.plan(tree, query_heads=4, kv_heads=2, head_dim=64)
    assert plans._made_for[made]() is tree.host_subtree_end
    with FakeTensorMode():
        plan = fake(made)
        plans._made_for[plan] = plans._made_for[made]
        plans.check_plan(plan, tree)
        with pytest.raises(ValueError, match=r"made for another tree; make one with regrow.plan"):
            plans.check_plan(plan, other)
