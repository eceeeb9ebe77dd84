"""How fast trees are built. `ours` beside `outputs only`, which writes arrays of the same sizes and nothing else.

pytest bench/test_tree.py -o addopts= --benchmark-columns=min,median,iqr,rounds --benchmark-sort=name
"""

import numpy as np
import pytest
import torch

from regrow.tree import PrefixTree

from_sequences, from_nodes = PrefixTree.from_sequences, PrefixTree.from_nodes
BRANCHES = 65_536


def long_sequences(convert):
    """64 sequences of 131,072 tokens that share half."""
    shared = torch.randint(0, 50_000, (65_536,))
    ends = torch.randint(0, 50_000, (64, 65_536))
    return from_sequences, ([convert(torch.cat([shared, end])) for end in ends],)


def short_sequences(convert):
    """65,536 sequences of one 16-token prompt and one token."""
    prompt = torch.randint(0, 50_000, (16,))
    return from_sequences, ([convert(torch.cat([prompt, torch.tensor([last])])) for last in range(BRANCHES)],)


def packed_short_sequences(_):
    (sequences,) = short_sequences(torch.Tensor.clone)[1]
    return from_sequences, ((torch.cat(sequences), torch.arange(BRANCHES + 1) * 17),)


def branch_nodes(_):
    """65,536 one-token nodes under a node of 512."""
    return from_nodes, ([-1] + [0] * BRANCHES, [512] + [1] * BRANCHES)


def grpo_nodes(_):
    """One prompt and 8 responses of 8,192: 2,097,152 tokens."""
    return from_nodes, ([-1] + [0] * 8, [2_097_152 - 8 * 8192] + [8192] * 8)


def deep_nodes(_):
    """A chain of a million one-token nodes."""
    return from_nodes, (torch.arange(-1, 999_999), torch.ones(1_000_000, dtype=torch.int64))


WORKLOADS = {
    "64 x 131,072 half shared, tensors": (long_sequences, torch.Tensor.clone),
    "64 x 131,072 half shared, arrays": (long_sequences, torch.Tensor.numpy),
    "64 x 131,072 half shared, lists": (long_sequences, torch.Tensor.tolist),
    "65,536 x (16 + 1), tensors": (short_sequences, torch.Tensor.clone),
    "65,536 x (16 + 1), arrays": (short_sequences, torch.Tensor.numpy),
    "65,536 x (16 + 1), lists": (short_sequences, torch.Tensor.tolist),
    "65,536 x (16 + 1), packed": (packed_short_sequences, None),
    "from_nodes: 512 + 65,536 x 1": (branch_nodes, None),
    "from_nodes: 2,031,616 + 8 x 8,192": (grpo_nodes, None),
    "from_nodes: chain of 1,000,000": (deep_nodes, None),
}


def write_outputs(tree):
    for _, tensor in tree._tensors():
        np.empty(tensor.size(0), tensor.numpy().dtype).fill(1)


def assert_right(tree, build, arguments):
    """What went in comes out; tests/tree has the oracle."""
    if build is from_sequences:
        (sequences,) = arguments
        flat = sequences[0] if isinstance(sequences, tuple) else torch.cat(list(map(torch.as_tensor, sequences)))
        assert torch.equal(tree.unpack(tree.tokens), flat)
    assert torch.equal(tree.unpack(tree.position_ids), torch.cat(list(map(torch.arange, tree.cu_seqlens.diff()))))


@pytest.mark.parametrize("implementation", ["ours", "outputs only"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_build(benchmark, workload, implementation):
    benchmark.group = workload
    make, convert = WORKLOADS[workload]
    build, arguments = make(convert)
    tree = build(*arguments)
    assert_right(tree, build, arguments)
    if implementation == "ours":
        benchmark.pedantic(build, arguments, rounds=15, warmup_rounds=2)
    else:
        benchmark.pedantic(write_outputs, (tree,), rounds=15, warmup_rounds=2)
