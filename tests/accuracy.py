"""The one rule of accuracy (docs/design.md): at most twice the error of plain torch at the same dtype, plus 2 ulp.

All comparisons are against an fp64 oracle. There are no tolerances to choose.
"""

import torch

ORACLE_TERMS = 2**14


def assert_accurate(ours, plain, oracle, *, per_row=False, rounding=None, what="result"):
    """`ours` and `plain` (plain torch at the same dtype) against `oracle` (fp64), elementwise by the largest error.

    `per_row` also compares relative errors of rows (first dimension), so that a lost row cannot hide behind large ones.
    `rounding`, in the oracle's shape, joins the floor: what rounding costs where larger intermediate results cancel.
    Plain torch may cancel exactly what a kernel computes in two ways, so its error can't tell.

    fp64 results are compared with an oracle of the same format, whose own sums err: n terms added in order drift like a
    random walk, by sqrt(n) ulp. The floor's ulp is then 128 ulp, for sums of up to 2^14 terms.
    """
    assert ours.shape == oracle.shape, f"{what}: shape {list(ours.shape)}, expected {list(oracle.shape)}"
    _assert_same_pattern(ours, oracle, what)
    if oracle.numel() == 0:
        return
    rounding = torch.zeros_like(oracle) if rounding is None else rounding
    # Of the format that holds the result.
    unit = torch.finfo(ours.dtype).eps * (ORACLE_TERMS**0.5 if ours.dtype == torch.float64 else 1)
    ours, plain, oracle = (x.detach().double() for x in (ours, plain, oracle))
    finite = oracle.isfinite()
    ours, oracle = ours.masked_fill(~finite, 0), oracle.masked_fill(~finite, 0)
    plain = plain.masked_fill(~finite, 0).nan_to_num()

    error, plain_error = (ours - oracle).abs().max(), (plain - oracle).abs().max()
    floor = 2 * unit * oracle.abs().max() + rounding.max()
    assert error <= 2 * plain_error + floor, (
        f"{what}: error {error:.3g}, plain torch {plain_error:.3g}, floor {floor:.3g}"
    )
    if per_row:
        _assert_accurate_rows(ours, plain, oracle, unit, rounding, what)


def _assert_accurate_rows(ours, plain, oracle, unit, rounding, what):
    """Each row's relative error against the worst row of plain torch.

    The floor is 2 ulp, in fp32 at the coarsest, of the largest value: kernels accumulate there, and rounding to a
    narrower format afterwards is relative to the row itself. Rows of small sums of large terms need it.
    """
    ours, plain, oracle = (x.reshape(x.size(0), -1) for x in (ours, plain, oracle))
    norm = oracle.norm(dim=1)
    floor = 2 * min(unit, torch.finfo(torch.float32).eps) * oracle.abs().max() * oracle.size(1) ** 0.5
    floor = floor + rounding.reshape(oracle.shape).norm(dim=1)
    plain_relative = ((plain - oracle).norm(dim=1) / norm).nan_to_num(0, 0, 0).max()
    excess = (ours - oracle).norm(dim=1) - (2 * plain_relative + 2 * unit) * norm - floor
    row = int(excess.argmax())
    assert excess[row] <= 0, (
        f"{what}: row {row} is off by {(ours - oracle)[row].norm():.3g}, its norm is {norm[row]:.3g}, "
        f"the worst row of plain torch is off by {plain_relative:.3g} of its norm"
    )


def _assert_same_pattern(ours, oracle, what):
    for name, pattern in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        differs = pattern(ours) != pattern(oracle)
        assert not differs.any(), f"{what}: {name} pattern differs at {differs.nonzero()[0].tolist()}"


def is_accurate(*tensors, **options):
    """Whether assert_accurate would let them pass."""
    try:
        assert_accurate(*tensors, **options)
    except AssertionError:
        return False
    return True
