"""Ops under CUDA graph capture; a replay reads the values of its own time."""

import pytest
import torch

import regrow
from device_cases import same_bits
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


# A plan is made on the host: under capture the call says so instead of breaking the graph.
def test_capture_without_a_plan(only_gpu):
    tree = regrow.PrefixTree.from_nodes([-1], [64]).to(only_gpu)
    q = torch.randn(64, 2, 64, dtype=torch.bfloat16, device=only_gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match=r"pass plan=regrow\.plan"):
        regrow.tree_attention(q, q, q, tree)
    torch.cuda.synchronize()
    assert regrow.tree_attention(q, q, q, tree).isfinite().all()
