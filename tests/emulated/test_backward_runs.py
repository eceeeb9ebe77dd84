"""The comparison of gradients with the CPU backend must catch what it is for, and let pass what rounding does."""

import pytest
import torch

from attention_cases import make_case, run_oracle
from backward_runs import GRADIENTS, assert_near_cpu, forward, on_cpu, rounding_apart
from named_trees import grpo_group

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def _case(dtype, **more):
    shape = {"heads": (2, 1), "head_dim": 64, "value_dim": 64}
    return make_case(grpo_group(), dtype=dtype, sinks=True, **shape, **more)


@DTYPES
@pytest.mark.parametrize("options", [{}, {"window": 9, "softcap": 2.0}], ids=str)
def test_the_oracle_is_near(options, dtype):
    case = _case(dtype, magnitude=2.0, **options)
    given = {name: x.float() for name, x in run_oracle(case, torch.float64, gradients=False).items()}
    oracle = run_oracle(case, torch.float64)
    assert_near_cpu(case, {name: oracle[name] for name in (*GRADIENTS, "dsinks")}, given)


# What a kernel could lose: a key, a value, a row of dout, the gradient of an lse, the end of a window, a sink.
@DTYPES
@pytest.mark.parametrize(
    "damage",
    [
        lambda case: case.k[17].zero_(),
        lambda case: case.v[30].zero_(),
        lambda case: case.dout[100].zero_(),
        lambda case: case.dlse[1].zero_(),
        lambda case: case.options.update(window=41),
        lambda case: case.sinks[1].zero_(),
    ],
    ids=["key", "value", "dout", "dlse", "window off by one", "sink"],
)
def test_damage_is_seen(damage, dtype):
    case, other = _case(dtype, window=40), _case(dtype, window=40)
    given = forward(case)
    damage(other)
    with pytest.raises(AssertionError, match=r"the CPU backend is .* further away"):
        assert_near_cpu(case, on_cpu(other, given), given)


@DTYPES
@pytest.mark.parametrize("name", [*GRADIENTS, "dsinks"])
def test_one_value_is_seen(name, dtype):
    case = _case(dtype)
    given = forward(case)
    ours, bound = on_cpu(case, given), rounding_apart(case, given)
    at = (1,) if name == "dsinks" else (77, 0, 3)
    ours[name][at] += 1.5 * bound[name][at].float()
    with pytest.raises(AssertionError, match=name):
        assert_near_cpu(case, ours, given)
    ours[name][at] = torch.nan
    with pytest.raises(AssertionError, match="NaN"):
        assert_near_cpu(case, ours, given)


@DTYPES
def test_the_bound_is_a_few_ulp(dtype):
    case = _case(dtype)
    given = forward(case)
    exact = on_cpu(case, given)
    for name, bound in rounding_apart(case, given).items():
        ulp = torch.finfo(dtype).eps * exact[name].abs().max()
        assert bound.max() < 16 * ulp
        if name == "dsinks":  # all fp32, but for the sum's length and what cancels in it
            assert bound.max() < 2**-11 * exact[name].abs().max()
