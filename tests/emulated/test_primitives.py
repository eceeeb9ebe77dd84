"""Each primitive does what the hardware's manual says, in every order of threads."""

import numpy as np
import pytest

INPUT = np.linspace(-3, 5, 64, dtype=np.float32)
LANE = np.arange(64)


def probe(emulator, name, inputs=INPUT):
    return lambda options: emulator.probe(name, inputs, options)


# name -> what it makes of its input
RIGHT_KERNELS = {
    "reverse_by_block": lambda x: x[63 - LANE] + 1,
    "reverse_by_warp": lambda x: x[LANE ^ 31],
    "producer_consumer": lambda x: x[LANE ^ 31],
    "copy_through_shared": lambda x: np.where(63 - LANE < 32, x.reshape(16, 4)[::-1].ravel()[63 - LANE], 0),
    "copy_4_bytes": lambda x: np.where(LANE % 2, 0, x[63 - LANE]),
    "copy_8_bytes": lambda x: np.where(LANE // 2 % 2, 0, x.reshape(32, 2)[::-1].ravel()),
    "shuffles": lambda x: x[LANE // 8 * 8] + np.float32(100) * x[LANE ^ 3],
    "half_warp_shuffles": lambda x: x[LANE ^ 5],
}


@pytest.mark.parametrize("name", RIGHT_KERNELS)
def test_right_kernels(name, emulator, every_way):
    out, _ = every_way(probe(emulator, name))
    np.testing.assert_array_equal(out, RIGHT_KERNELS[name](INPUT))


@pytest.mark.parametrize(
    "name, num_points", [("reverse_by_block", 3), ("reverse_by_warp", 1), ("producer_consumer", 4)]
)
def test_each_barrier_matters(name, num_points, emulator, assert_each_sync_point_matters):
    assert len(assert_each_sync_point_matters(probe(emulator, name))) == num_points


def test_each_step_of_a_copy_matters(emulator, assert_each_sync_point_matters):
    points = assert_each_sync_point_matters(probe(emulator, "copy_through_shared"))
    assert [point.split()[1] for point in points] == ["commit_copies", "wait_copies", "sync_block", "sync_block"]


@pytest.mark.parametrize("name", ["copy_4_bytes", "copy_8_bytes"])
def test_each_step_of_a_narrow_copy_matters(name, emulator, assert_each_sync_point_matters):
    points = assert_each_sync_point_matters(probe(emulator, name))
    assert [point.split()[1] for point in points] == ["commit_copies", "wait_copies", "sync_block"]


def test_ldmatrix_reads_for_all_lanes_of_a_row(emulator, every_way, assert_each_sync_point_matters):
    run = probe(emulator, "matrices_of_own_rows", np.float32(LANE))
    out, _ = every_way(run)
    first = LANE // 32 * 32 + LANE % 32 // 4
    np.testing.assert_array_equal(out, first + 100 * (first + 24))
    assert len(assert_each_sync_point_matters(run)) == 2


def test_exp2(emulator, every_way):
    inputs = np.resize(np.float32([0, -0.0, 1, -1, 0.5, 10.3, -126, -126.5, -149, 127.9, 128, 1e-39, 100]), 64)
    inputs[-3:] = [np.inf, -np.inf, np.nan]
    out, _ = every_way(probe(emulator, "exponentials", inputs))
    with np.errstate(over="ignore", under="ignore"):
        expected = np.exp2(inputs.astype(np.float64)).astype(np.float32)
    expected[expected < 2.0**-126] = 0  # ftz
    np.testing.assert_allclose(out, expected, rtol=3e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_packing_rounds_as_torch_does(dtype, emulator, every_way, generator):
    torch = pytest.importorskip("torch")
    inputs = torch.randn(64, generator=generator) * torch.logspace(-9, 6, 64)
    inputs[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.0])
    inputs[6:8] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8])  # ties of bfloat16: to even, down and up
    inputs[8:10] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11])  # of float16
    out, _ = every_way(probe(emulator, f"packing_{dtype}", inputs.numpy()))
    np.testing.assert_array_equal(out, inputs.to(getattr(torch, dtype)).float().numpy())


# Words between the lanes' places -> extra cycles of two warps' stores.
@pytest.mark.parametrize("stride, extra", [(1, 0), (2, 2), (8, 2 * 7), (31, 0), (32, 2 * 31)])
def test_bank_conflicts_are_counted(stride, extra, emulator):
    inputs = np.full(64, stride, np.float32)
    _, report = emulator.probe("strided_stores", inputs, emulator.Options())
    assert report.bank_conflicts == extra
