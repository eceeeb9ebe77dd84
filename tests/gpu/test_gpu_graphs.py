"""Ops under CUDA graph capture; a replay reads the values of its own time."""

import pytest
import torch

import regrow
from device_cases import plan_of, same_bits
from device_operations import operations

pytestmark = pytest.mark.gpu


def test_replay_with_other_values(only_gpu):
    for operation in operations(only_gpu):
        if operation.waits:
            continue
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            operation.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = operation.run()
        for seed in (3, 4, 3):
            operation.refill(seed)
            graph.replay()
            torch.cuda.synchronize()
            replayed = [result.clone() for result in captured]
            assert same_bits(replayed, operation.run()), f"{operation.name}, values {seed}"


# A training step's attention: autograd's backward is captured with its forward. The counters of the turns are zeroed
# by the graph too, or the second replay would wait for ever.
def test_forward_and_backward(only_gpu):
    tree = regrow.PrefixTree.from_nodes([-1] + [0] * 4, [1000] + [130] * 4).to(only_gpu)
    shapes = ((tree.num_tokens, 8, 128), (tree.num_tokens, 2, 128), (tree.num_tokens, 2, 128))
    leaves = [torch.empty(shape, dtype=torch.bfloat16, device=only_gpu).requires_grad_() for shape in shapes]
    dout, plan = torch.empty_like(leaves[0], requires_grad=False), plan_of(tree, *leaves)

    def step():
        out = regrow.tree_attention(*leaves, tree, plan=plan)
        return out.detach(), *torch.autograd.grad(out, leaves, dout)

    def refill(seed):
        generator = torch.Generator(only_gpu).manual_seed(seed)
        with torch.no_grad():
            for tensor in (*leaves, dout):
                tensor.normal_(generator=generator)

    refill(0)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in (1, 2, 1):
        refill(seed)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [result.clone() for result in captured]
        assert same_bits(replayed, step()), f"values {seed}"


# A plan is made on the host: under capture the call says so instead of breaking the graph.
def test_capture_without_a_plan(only_gpu):
    tree = regrow.PrefixTree.from_nodes([-1], [64]).to(only_gpu)
    q = torch.randn(64, 2, 64, dtype=torch.bfloat16, device=only_gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match=r"call regrow\.plan first"):
        regrow.tree_attention(q, q, q, tree)
    torch.cuda.synchronize()
    expected = regrow.tree_attention(q, q, q, tree)
    assert expected.isfinite().all()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):  # the tree keeps the plan of that call
        regrow.tree_attention(q, q, q, tree)
