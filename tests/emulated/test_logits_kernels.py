"""The kernels over rows of logits: the same bits in every order of threads, and the CPU backend's numbers."""

import numpy as np
import pytest
import torch

from accuracy import assert_accurate
from arrays import NAMES, to_numpy, to_torch


# Rows of 16 bytes together and of single values; fewer values than threads, more than one round of them.
@pytest.mark.parametrize("vocabulary", [3, 40, 517, 4160])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=NAMES.get)
def test_logits_rows(vocabulary, softcap, dtype, emulator, every_way, generator):
    logits = (5 * torch.randn((3, vocabulary), generator=generator)).to(dtype)
    logits[1, 0] = -torch.inf
    row, token = torch.randint(3, (300,), generator=generator), torch.randint(vocabulary, (300,), generator=generator)
    targets = (row.numpy(), token.numpy(), NAMES[dtype], 0.7, softcap)
    *ours, _ = every_way(lambda options: emulator.logits(to_numpy(logits), *targets, options))

    def on_cpu(x):
        lse, entropy = torch.ops.regrow.logits_row_stats(x, 0.7, softcap or None)
        return lse, entropy, torch.ops.regrow.logits_pick(x, lse, row, token, 0.7, softcap or None)

    # lse is held in fp64, and is the logarithm of a sum made in fp32: its error is the sum's relative one.
    lse_rounding = 0.0 if dtype == torch.float64 else 2 * torch.finfo(torch.float32).eps
    results = zip(ours, on_cpu(logits), on_cpu(logits.double()), (lse_rounding, 0.0, 0.0), strict=True)
    for kernel, cpu, oracle, rounding in results:
        assert_accurate(torch.from_numpy(kernel), cpu, oracle, rounding=torch.full_like(oracle, rounding))


def test_logits_rows_keep_infinities_and_nan(emulator, every_way, generator):
    logits = torch.randn((3, 40), generator=generator)
    logits[0, 7], logits[1, 33], logits[2] = torch.nan, torch.inf, -torch.inf
    index = np.zeros(1, np.int64)
    lse, entropy, *_ = every_way(
        lambda options: emulator.logits(logits.numpy(), index, index, "float32", 1.0, 0.0, options)
    )
    cpu_lse, cpu_entropy = torch.ops.regrow.logits_row_stats(logits, 1.0, None)
    np.testing.assert_array_equal(lse, cpu_lse.numpy())
    np.testing.assert_array_equal(entropy, cpu_entropy.numpy())


def test_each_barrier_of_logits_rows_matters(emulator, assert_each_sync_point_matters, generator):
    logits, index = torch.randn((1, 520), generator=generator).numpy(), np.zeros(1, np.int64)
    points = assert_each_sync_point_matters(
        lambda options: emulator.logits(logits, index, index, "float32", 1.0, 0.0, options)
    )
    assert len(points) == 3


def numbered_targets(tokens_of_rows):
    """row_start and target_token of lists of tokens, one a row."""
    start = np.cumsum([0, *map(len, tokens_of_rows)])
    return torch.from_numpy(start), torch.tensor([token for row in tokens_of_rows for token in sorted(row)])


# Rows and gaps of 16 bytes together and of single values; plain, softcap and entropy, entropy alone. The rows: one
# target; several, some of one token, at either end and around the place where a thread's next values begin; more than
# threads; none.
@pytest.mark.parametrize("vocabulary, gap", [(3, 0), (40, 8), (520, 3), (4160, 0)])
@pytest.mark.parametrize("softcap, with_entropy", [(0.0, False), (5.0, True), (0.0, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=NAMES.get)
def test_logits_row_grad(vocabulary, gap, softcap, with_entropy, dtype, emulator, every_way, generator):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rows = (5 * torch.randn((4, vocabulary + gap), generator=generator)).to(dtype)
    rows[1, 0] = -torch.inf
    rows[:, vocabulary:] = 77
    several = [0, 0, 1, min(7, vocabulary - 1), vocabulary // 2, vocabulary // 2, vocabulary - 1, vocabulary - 1]
    many = torch.randint(vocabulary, (300,), generator=generator).tolist()
    start, token = numbered_targets([[vocabulary // 3], several, many, []])
    dlogp = torch.randn(len(token), dtype=wide, generator=generator)
    dentropy = torch.randn(4, dtype=wide, generator=generator) if with_entropy else None

    def on_cpu(kind):
        logits = rows[:, :vocabulary].to(kind)
        lse, entropy = torch.ops.regrow.logits_row_stats(logits, 0.7, softcap or None)
        numbers = [x if x is None or kind == dtype else x.double() for x in (dlogp, dentropy)]
        gradient = logits.clone()
        torch.ops.regrow.logits_row_grad_(gradient, lse, entropy, start, token, *numbers, 0.7, softcap or None)
        return gradient, lse, entropy

    cpu, lse, entropy = on_cpu(dtype)
    arrays = [None if t is None else t.numpy() for t in (lse, entropy, start, token, dlogp, dentropy)]
    ours, _ = every_way(
        lambda options: emulator.logits_row_grad(
            to_numpy(rows), *arrays, vocabulary, NAMES[dtype], 0.7, softcap, options
        )
    )
    ours = to_torch(ours, dtype)
    assert_accurate(ours[:, :vocabulary], cpu, on_cpu(torch.float64)[0], per_row=True)
    assert (ours[:, vocabulary:] == 77).all()


def test_gradient_of_large_logits(emulator, options, generator):
    """An lse near 1e4 has two digits in fp32 behind the point: its rest counts."""
    logits = 1e4 + torch.randn((1, 40), generator=generator)
    start, token = numbered_targets([[3]])
    lse, entropy = torch.ops.regrow.logits_row_stats(logits, 1.0, None)
    numbers = (lse, entropy, start, token, torch.ones(1))
    arrays = [t.numpy() for t in numbers]
    ours, _ = emulator.logits_row_grad(logits.numpy(), *arrays, None, 40, "float32", 1.0, 0.0, options)
    expected, oracle = logits.clone(), logits.double()
    torch.ops.regrow.logits_row_grad_(expected, *numbers, None, 1.0, None)
    torch.ops.regrow.logits_row_grad_(
        oracle, lse, entropy.double(), start, token, numbers[-1].double(), None, 1.0, None
    )
    assert_accurate(torch.from_numpy(ours), expected, oracle)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=NAMES.get)
def test_the_label_is_subtracted_before_rounding(dtype, emulator, options):
    """1 - p of a sure target, which 16 bits do not see in p."""
    logits = torch.zeros((1, 8), dtype=dtype)
    logits[0, 2] = 9
    lse, entropy = torch.ops.regrow.logits_row_stats(logits, 1.0, None)
    arrays = [t.numpy() for t in (lse, entropy, *numbered_targets([[2]]), torch.ones(1))]
    ours, _ = emulator.logits_row_grad(to_numpy(logits), *arrays, None, 8, NAMES[dtype], 1.0, 0.0, options)
    expected = torch.tensor([0.0, 0, 1, 0, 0, 0, 0, 0]) - logits.double().softmax(1)
    assert_accurate(to_torch(ours, dtype), expected.to(dtype), expected, per_row=True)


def test_logits_row_grad_keeps_infinities_and_nan(emulator, every_way, generator):
    logits = torch.randn((4, 40), generator=generator)
    logits[0, 7], logits[1, 33], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 5] = -torch.inf
    start, token = numbered_targets([[3], [33], [], [5, 6]])
    lse, entropy = torch.ops.regrow.logits_row_stats(logits, 1.0, None)
    numbers = (lse, entropy, start, token, torch.ones(4), torch.ones(4))
    ours, _ = every_way(
        lambda options: emulator.logits_row_grad(
            logits.numpy(), *(t.numpy() for t in numbers), 40, "float32", 1.0, 0.0, options
        )
    )
    expected = logits.clone()
    torch.ops.regrow.logits_row_grad_(expected, *numbers, 1.0, None)
    torch.testing.assert_close(torch.from_numpy(ours), expected, equal_nan=True, rtol=1e-5, atol=1e-6)


ONE_ROW = [np.zeros(1), np.zeros(1, np.float32), np.array([0, 2]), np.array([1, 3]), np.ones(2, np.float32), None]


def test_the_barrier_of_logits_row_grad_matters(emulator, assert_each_sync_point_matters):
    logits = np.zeros((1, 8), np.float32)
    points = assert_each_sync_point_matters(
        lambda options: emulator.logits_row_grad(logits, *ONE_ROW, 8, "float32", 1.0, 0.0, options)
    )
    assert len(points) == 1


@pytest.mark.parametrize(
    "start, token, match",
    [
        ([1, 2], [1, 3], "row_start must ascend from 0 to the number of targets"),
        ([0, 1], [1, 3], "row_start must ascend from 0"),
        ([0, 3, 2], [1, 3], "row_start must ascend from 0"),
        ([0, -1, 2], [1, 3], "row_start must ascend from 0"),
        ([0, 2], [-1, 3], r"target_token must be in \[0, vocabulary\): look at target_token.min\(\) and .max\(\)"),
        ([0, 2], [1, 8], r"target_token must be in \[0, vocabulary\)"),
        ([0, 2], [3, 1], "target_token must ascend within a row: sort the targets by row, then by token"),
    ],
)
def test_targets_that_break_a_rule(start, token, match, emulator, options):
    rows = len(start) - 1
    stats = np.zeros(rows), np.zeros(rows, np.float32)
    targets = np.array(start), np.array(token), np.ones(2, np.float32), None
    with pytest.raises(emulator.Failure, match=rf"block \d+, thread \d+: .*{match}"):
        emulator.logits_row_grad(np.zeros((rows, 8), np.float32), *stats, *targets, 8, "float32", 1.0, 0.0, options)
