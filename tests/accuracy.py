"""The one rule of accuracy (docs/design.md): at most twice the error of plain torch at the same dtype, plus 2 ulp.

All comparisons are against an fp64 oracle. There are no tolerances to choose.
"""

import torch


def assert_accurate(ours, plain, oracle, *, per_row=False, what="result"):
    """`ours` and `plain` (plain torch at the same dtype) against `oracle` (fp64), elementwise by the largest error.

    `per_row` also compares relative errors of rows (first dimension), so that a lost row cannot hide behind large ones.
    """
    assert ours.shape == oracle.shape, f"{what}: shape {list(ours.shape)}, expected {list(oracle.shape)}"
    _assert_same_pattern(ours, oracle, what)
    if oracle.numel() == 0:
        return
    unit = torch.finfo(ours.dtype).eps  # of the format that holds the result
    ours, plain, oracle = (x.detach().double() for x in (ours, plain, oracle))
    finite = oracle.isfinite()
    ours, oracle = ours.masked_fill(~finite, 0), oracle.masked_fill(~finite, 0)
    plain = plain.masked_fill(~finite, 0).nan_to_num()

    error, plain_error = (ours - oracle).abs().max(), (plain - oracle).abs().max()
    floor = 2 * unit * oracle.abs().max()
    assert error <= 2 * plain_error + floor, (
        f"{what}: error {error:.3g}, plain torch {plain_error:.3g}, floor {floor:.3g}"
    )
    if per_row:
        _assert_accurate_rows(ours, plain, oracle, unit, what)


def _assert_accurate_rows(ours, plain, oracle, unit, what):
    """Each row's relative error against the worst row of plain torch; rows of zeros against the whole's floor."""
    ours, plain, oracle = (x.reshape(x.size(0), -1) for x in (ours, plain, oracle))
    norm = oracle.norm(dim=1)
    zero = norm == 0
    scale = norm.masked_fill(zero, 1)
    error = ((ours - oracle).norm(dim=1) / scale).masked_fill(zero, 0)
    plain_error = ((plain - oracle).norm(dim=1) / scale).masked_fill(zero, 0)
    row = int(error.argmax())
    bound = 2 * plain_error.max() + 2 * unit
    assert error[row] <= bound, f"{what}: row {row} has relative error {error[row]:.3g}, bound {bound:.3g}"
    if zero.any():
        floor = 2 * unit * oracle.abs().max() + 2 * plain[zero].abs().max()
        leftover = ours[zero].abs().max()
        assert leftover <= floor, f"{what}: a row that should be 0 is {leftover:.3g}"


def _assert_same_pattern(ours, oracle, what):
    for name, pattern in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        differs = pattern(ours) != pattern(oracle)
        assert not differs.any(), f"{what}: {name} pattern differs at {differs.nonzero()[0].tolist()}"
