"""The comparison of tests/gpu: head by head it is the oracle, and it notices what it should."""

import pytest
import torch

from attention_cases import make_case, run_oracle, run_regrow
from device_cases import Dense, assert_gradients
from named_trees import conversation


@pytest.fixture
def case():
    return make_case(
        conversation(), dtype=torch.bfloat16, heads=(6, 2), head_dim=64, value_dim=64, window=20, sinks=True
    )


def test_heads_joined_are_the_oracle(case):
    whole, dense = run_oracle(case, torch.float64), Dense(case, gradients=True)
    for name, expected in whole.items():
        torch.testing.assert_close(dense(torch.float64, name), expected, rtol=1e-12, atol=1e-12)


ERRORS = {
    "dq: a lost row": lambda ours: ours["dq"][7].zero_(),
    "dk: one head of the group": lambda ours: ours["dk"].mul_(2 / 3),
    "dv: the last key": lambda ours: ours["dv"][-1].zero_(),
    "dsinks: the sign": lambda ours: ours["dsinks"].neg_(),
    "lse: base 2": lambda ours: ours["lse"].mul_(1.442695),
}


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_noticed(error, case):
    ours = run_regrow(case)
    assert_gradients(case, ours)
    ERRORS[error](ours)
    with pytest.raises(AssertionError, match=error.partition(":")[0]):
        assert_gradients(case, ours)
