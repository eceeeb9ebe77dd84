"""Kernels that only move rows."""

import pytest

from regrow.performance.chips import CHIPS
from regrow.performance.memory_kernels import KERNEL_SECONDS, gather, logits_rows, lse_merge, scatter

CHIP = CHIPS["H200"]


def test_bytes():
    assert gather(CHIP, 10, 256).moved_bytes == 10 * (256 + 256 + 8)
    assert scatter(CHIP, 10, 4, 256).moved_bytes == 10 * (256 + 8) + 4 * (256 + 8)
    assert lse_merge(CHIP, 3, 7, 2, 64).moved_bytes == 4 * 7 * 2 * (64 + 1) * 4
    assert logits_rows(CHIP, 5, 1000).moved_bytes == 5 * (2000 + 12)


def test_floor_and_prediction():
    cost = gather(CHIP, 100_000, 8192)
    assert cost.floor == pytest.approx(cost.moved_bytes / 4.8e12)
    assert cost.predicted == pytest.approx(cost.moved_bytes / 4.3e12 + KERNEL_SECONDS)
