"""The comparison with the CPU backend must itself catch what it is for, and let pass what rounding does."""

import pytest
import torch

from attention_cases import make_case, run_oracle, run_regrow
from attention_runs import assert_near_cpu, rounding_apart
from named_trees import grpo_group

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def _case(dtype, **more):
    return make_case(grpo_group(), dtype=dtype, heads=(2, 1), head_dim=64, value_dim=64, sinks=True, **more)


def _rounded_oracle(case):
    return {
        name: result.to(case.dtype if name == "out" else torch.float32)
        for name, result in run_oracle(case, torch.float64, gradients=False).items()
    }


@DTYPES
def test_what_is_rounded_once_is_near(dtype):
    case = _case(dtype, magnitude=2.0)
    assert_near_cpu(case, _rounded_oracle(case))


# What a kernel could lose: a key, a value, the end of a window; and the last bits of lse, which nobody rounds to 16.
@DTYPES
@pytest.mark.parametrize(
    "damage",
    [
        lambda case: case.k[17].zero_(),
        lambda case: case.v[30].zero_(),
        lambda case: case.options.update(window=41),
        lambda case: case.sinks[1].zero_(),
    ],
    ids=["key", "value", "window off by one", "sink"],
)
def test_damage_is_seen(damage, dtype):
    other = _case(dtype, window=40)
    damage(other)
    with pytest.raises(AssertionError, match=r"the CPU backend is .* away"):
        assert_near_cpu(_case(dtype, window=40), run_regrow(other, gradients=False))


@DTYPES
def test_the_bound_is_a_few_ulp(dtype):
    case = _case(dtype)
    bound, oracle = rounding_apart(case), run_oracle(case, torch.float64, gradients=False)
    assert bound["lse"].max() < 1e-4 * oracle["lse"].abs().max()
    assert bound["out"].max() < 4 * torch.finfo(dtype).eps * case.v.abs().max()


@DTYPES
@pytest.mark.parametrize("name", ["out", "lse"])
def test_one_value_is_seen(name, dtype):
    case = _case(dtype)
    ours, bound = _rounded_oracle(case), rounding_apart(case)[name]
    ours[name][77, 1] += (2.5 * bound[77, 1]).to(ours[name].dtype)
    with pytest.raises(AssertionError, match=name):
        assert_near_cpu(case, ours)
    ours[name][77, 1] = torch.nan
    with pytest.raises(AssertionError, match="isnan"):
        assert_near_cpu(case, ours)
