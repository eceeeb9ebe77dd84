"""The helper that compares attention with the oracle must itself catch what it is for."""

import pytest
import torch

from attention_cases import assert_matches_oracle, make_case, rounding, run_oracle, run_regrow, worst_plain
from named_trees import grpo_group

TREE = grpo_group()
OPTIONS = {"window": 40, "sinks": True}


def damaged(dtype, damage):
    case = make_case(TREE, dtype=dtype, **OPTIONS)
    other = make_case(TREE, dtype=dtype, **OPTIONS)
    damage(other)
    return case, run_regrow(other)


# What a kernel could forget: a key, a value, a query's gradient, the window, softcap, a sink, the gradient of lse.
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "damage",
    [
        lambda case: case.k[17].zero_(),
        lambda case: case.v[30].zero_(),
        lambda case: case.dout[100].zero_(),
        lambda case: case.options.update(window=41),
        lambda case: case.options.update(window=None),
        lambda case: case.options.update(softcap=2.0),
        lambda case: case.sinks[2].zero_(),
        lambda case: case.dlse.zero_(),
    ],
    ids=["key", "value", "dout", "window off by one", "window", "softcap", "sink", "dlse"],
)
def test_damage_is_seen(damage, dtype):
    case, ours = damaged(dtype, damage)
    with pytest.raises(AssertionError):
        assert_matches_oracle(case, ours)


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_a_lost_row_is_seen(name):
    case = make_case(TREE, dtype=torch.bfloat16, **OPTIONS)
    ours = run_regrow(case)
    assert_matches_oracle(case, ours)
    ours[name][77] *= 0.5
    with pytest.raises(AssertionError, match=name):
        assert_matches_oracle(case, ours)


def test_the_worst_plain_result_is_no_better_and_still_plain():
    case = make_case(TREE, dtype=torch.float32, **OPTIONS)
    oracle, plain = run_oracle(case, torch.float64), run_oracle(case, torch.float32)
    worst = worst_plain(case, plain, oracle)
    for name in ("out", "lse"):
        before, after = ((x[name].double() - oracle[name]).abs() for x in (plain, worst))
        assert (after >= before).all() and (after > before).any() and after.max() < 4 * before.max()
    assert worst["dq"] is plain["dq"]


def test_rounding_is_for_gradients_only():
    case = make_case(TREE, **OPTIONS)
    assert rounding(case, run_oracle(case, torch.float64)).keys() == {"dq", "dk", "dv", "dsinks"}
