"""Bitwise the same results from run to run, for any number of threads, and from uninitialised memory full of NaN."""

import pytest
import torch

import regrow
from attention_cases import assert_same, make_case, run_regrow
from named_trees import grpo_group
from plan_decoder import Plan
from regrow import PrefixTree

# Late queries over so many keys that a call is split over them; a root's keys under so many queries that it is too.
LARGE = PrefixTree.from_nodes([-1] + [0] * 6, [2300] + [90] * 6)
CASES = {
    "whole": make_case(LARGE, heads=(2, 1), head_dim=8, value_dim=8, sinks=True),
    "few queries": make_case(LARGE, heads=(2, 1), head_dim=8, value_dim=8, queries=(2800, 2830), sinks=True),
    "few keys": make_case(LARGE, heads=(4, 2), head_dim=8, value_dim=8, keys=(0, 100), window=2000),
    "bf16": make_case(LARGE, dtype=torch.bfloat16, heads=(4, 2), head_dim=16, value_dim=8, softcap=5.0),
}


def test_the_cases_are_split():
    whole = Plan(regrow.plan(LARGE, query_heads=2, kv_heads=1))
    assert whole.merges and max(item.turn for item in whole.backward) > 1
    few = Plan(regrow.plan(LARGE, query_heads=2, kv_heads=1, query_start=2800, num_queries=30))
    assert len(few.merges) == 1


@pytest.mark.parametrize("name", CASES)
def test_threads_and_runs(name, num_threads):
    num_threads(1)
    expected = run_regrow(CASES[name])
    for threads in (1, 2, 3, 4, 2, 4):
        num_threads(threads)
        assert_same(run_regrow(CASES[name]), expected)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_merges_with_any_number_of_threads(threads, num_threads):
    outs, lses = torch.randn(5, 1000, 4, 8, requires_grad=True), torch.randn(5, 4, 1000, requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)

    def run(count):
        num_threads(count)
        out, lse = regrow.lse_merge(outs, lses, sinks)
        return out, lse, *torch.autograd.grad((out, lse), (outs, lses, sinks), (out.detach(), lse.detach()))

    assert all(torch.equal(a, b) for a, b in zip(run(threads), run(1), strict=True))


@pytest.fixture
def poisoned_memory():
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(100).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


SMALL = {
    "empty rows": {"queries": (0, 146), "keys": (40, 90), "sinks": True},
    "odd rows": {"heads": (3, 1), "queries": (1, 146), "keys": (3, 131), "window": 7},
    "nothing": {"keys": (4, 4), "sinks": True},
    "padded dims": {"head_dim": 8, "value_dim": 40, "softcap": 3.0},
}


def in_clean_memory(run):
    """The same call outside the fixture's mode."""
    torch.use_deterministic_algorithms(False)
    results = run()
    torch.use_deterministic_algorithms(True)
    return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_poisoned_memory(isa, poisoned_memory, name, dtype):
    case = make_case(grpo_group(), dtype=dtype, **SMALL[name])
    poisoned = run_regrow(case)
    assert not any(result.isnan().any() for result in poisoned.values())
    assert_same(poisoned, in_clean_memory(lambda: run_regrow(case)))


def test_poisoned_memory_of_split_work(poisoned_memory):
    for case in CASES.values():
        poisoned = run_regrow(case)
        assert not any(result.isnan().any() for result in poisoned.values())
        assert_same(poisoned, in_clean_memory(lambda case=case: run_regrow(case)))
