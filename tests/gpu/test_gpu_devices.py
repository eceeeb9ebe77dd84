"""Tensors of a device other than the current one: the kernels follow the tensors, and give the same bits."""

import pytest
import torch

from device_cases import same_bits
from device_operations import operations

pytestmark = pytest.mark.gpu


@pytest.fixture
def other(only_gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    if torch.cuda.get_device_capability(0) != torch.cuda.get_device_capability(1):
        pytest.skip("the GPUs are of different kinds: their configurations may differ")
    return torch.device("cuda", 1)


def test_tensors_of_another_device(only_gpu, other):
    here, there = operations(torch.device("cuda", 0)), operations(other)
    for first, second in zip(here, there, strict=True):
        assert torch.cuda.current_device() == 0
        expected = [result.cpu() for result in first.run()]
        for current in (0, 1):
            with torch.cuda.device(current):
                results = second.run()
            assert all(result.device == other for result in results)
            assert same_bits([result.cpu() for result in results], expected), first.name


# Shared memory beyond 48 KiB is asked for once per device, not once per process.
def test_the_other_device_first(only_gpu, other):
    for second in operations(other):
        assert all(not result.isnan().any() for result in second.run()), second.name
