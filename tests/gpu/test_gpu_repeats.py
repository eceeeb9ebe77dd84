"""The same bits from run to run: from memory full of NaN, and while another stream keeps the device busy."""

import pytest
import torch

from device_cases import same_bits
from device_operations import operations

pytestmark = pytest.mark.gpu

RUNS = 20


@pytest.fixture
def everything(device, size):
    return operations(device, tokens=size(3001, 65), vocabulary=size(32_003, 203))


def poison(device):
    """What the next workspaces and results are made of."""
    if device.type == "cuda":
        blocks = [torch.full((2**power,), torch.nan, device=device) for power in range(8, 28)]
        del blocks


def test_runs(device, everything):
    for operation in everything:
        expected = operation.run()
        for _ in range(RUNS):
            poison(device)
            assert same_bits(operation.run(), expected), operation.name


def test_runs_beside_a_busy_stream(only_gpu, everything):
    busy, square = torch.cuda.Stream(), torch.randn(4096, 4096, device=only_gpu)
    for operation in everything:
        expected = operation.run()
        torch.cuda.synchronize()
        for run in range(RUNS):
            with torch.cuda.stream(busy):
                for _ in range(1 + run % 3):
                    square @ square
            assert same_bits(operation.run(), expected), operation.name


# A second process would see the same: nothing depends on where memory lies.
def test_other_addresses(device, everything, size):
    keep = torch.empty(size(10**7, 10) + 16, device=device)  # noqa: F841
    again = operations(device, tokens=size(3001, 65), vocabulary=size(32_003, 203))
    for first, second in zip(everything, again, strict=True):
        assert same_bits(first.run(), second.run()), first.name
