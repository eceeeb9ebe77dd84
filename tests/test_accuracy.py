"""The helper that judges every kernel must itself catch what it is for."""

import pytest
import torch

from accuracy import assert_accurate, is_accurate

ORACLE = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def fails(ours, plain, oracle, match, **options):
    with pytest.raises(AssertionError, match=match):
        assert_accurate(ours, plain, oracle, **options)


def test_rounding_passes():
    assert_accurate(ORACLE.float(), ORACLE.float(), ORACLE, per_row=True)
    assert_accurate(ORACLE.bfloat16(), ORACLE.bfloat16(), ORACLE, per_row=True)
    assert_accurate(ORACLE[:0], ORACLE[:0], ORACLE[:0], per_row=True)


def test_twice_the_error_of_plain_torch_is_the_limit():
    plain = ORACLE.float() + 1e-3
    assert_accurate(ORACLE.float() + 1.9e-3, plain, ORACLE)
    fails(ORACLE.float() + 2.1e-3, plain, ORACLE, "error")


def test_the_floor_is_two_ulp_of_the_largest_value():
    ulp = torch.finfo(torch.float32).eps * ORACLE.abs().max()
    assert_accurate((ORACLE + 1.5 * ulp).float(), ORACLE, ORACLE)
    fails((ORACLE + 3 * ulp).float(), ORACLE, ORACLE, "error")


def test_rounding_joins_the_floor():
    rounding = torch.full_like(ORACLE, 1.1e-3)
    assert_accurate(ORACLE + 1e-3, ORACLE, ORACLE, rounding=rounding, per_row=True)
    fails(ORACLE + 1.2e-3, ORACLE, ORACLE, "error", rounding=rounding)
    rounding[2] = 0
    fails(ORACLE + 1e-3, ORACLE, ORACLE, "row 2", rounding=rounding, per_row=True)


def test_shape():
    fails(ORACLE[:1], ORACLE, ORACLE, "shape")


@pytest.mark.parametrize("value, name", [(torch.nan, "NaN"), (torch.inf, "inf"), (-torch.inf, "-inf")])
def test_patterns_must_agree_both_ways(value, name):
    special = ORACLE.clone()
    special[2, 3] = value
    assert_accurate(special.float(), special.float(), special, per_row=True)
    fails(special.float(), special.float(), ORACLE, name)
    fails(ORACLE.float(), special.float(), special, name)


def test_plain_torch_may_fail_where_ours_does_not():
    plain = ORACLE.clone()
    plain[0, 0] = torch.nan
    assert_accurate(ORACLE.float(), plain.float(), ORACLE)


def test_a_lost_row_cannot_hide_behind_a_large_one():
    oracle = ORACLE.clone()
    oracle[1] *= 1e4
    plain = oracle.bfloat16()
    ours = plain.clone()
    ours[4] = 0
    assert_accurate(ours, plain, oracle)
    fails(ours, plain, oracle, "row 4", per_row=True)


def test_a_row_of_zeros_must_stay_zero():
    oracle = ORACLE.clone()
    oracle[3] = 0
    ours = oracle.float()
    assert_accurate(ours, oracle.float(), oracle, per_row=True)
    ours[3] = 1e-4
    fails(ours, oracle.float() + 1e-3 * (oracle != 0), oracle, "row 3", per_row=True)


def test_is_accurate_says_what_assert_accurate_would():
    assert is_accurate(ORACLE.float(), ORACLE.float(), ORACLE)
    assert not is_accurate(ORACLE.float() + 1, ORACLE.float(), ORACLE)
