"""Kernels go to torch's current stream and to no other, and no call waits for the device."""

import pytest
import torch

from device_cases import same_bits
from device_operations import operations

pytestmark = pytest.mark.gpu

SLEEP_CYCLES = 400_000_000  # some 0.2 s


@pytest.fixture
def everything(only_gpu):
    """Run once each: modules are loaded and the allocator has what it needs, on the side stream too."""
    made = operations(only_gpu)
    side = torch.cuda.Stream()
    for operation in made:
        operation.run()
        with torch.cuda.stream(side):
            operation.run()
    torch.cuda.synchronize()
    return side, made


def test_in_order_on_a_side_stream(everything):
    """New values arrive behind a long kernel of a side stream. Another stream's kernel would read the old ones."""
    side, made = everything
    for operation in made:
        expected = operation.refill(1).run()
        fresh = [value.clone() for value in operation.values]
        assert not same_bits(operation.refill(2).run(), expected)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            for value, new in zip(operation.values, fresh, strict=True):
                value.copy_(new)
            results = operation.run()
            seen = [result.clone() for result in results]  # by work queued behind it
        side.synchronize()
        assert same_bits(results, expected) and same_bits(seen, expected), operation.name


def test_default_stream_is_left_alone(everything):
    """The default stream is blocked: what runs on a side stream ends all the same."""
    side, made = everything
    for operation in made:
        torch.cuda.synchronize()
        blocked, done = torch.cuda.Event(), torch.cuda.Event()
        torch.cuda._sleep(SLEEP_CYCLES)
        blocked.record()
        with torch.cuda.stream(side):
            operation.run()
            done.record()
        done.synchronize()
        assert not blocked.query(), f"{operation.name} waited for the default stream"


def test_no_call_waits(everything):
    """A call returns while the device is still busy with what came before it."""
    _, made = everything
    for operation in made:
        if operation.waits:
            continue
        torch.cuda.synchronize()
        before = torch.cuda.Event()
        torch.cuda._sleep(SLEEP_CYCLES)
        before.record()
        operation.run()
        assert not before.query(), f"{operation.name} waited for the device"
        torch.cuda.synchronize()


def test_many_streams(everything):
    _, made = everything
    streams = [torch.cuda.Stream() for _ in range(4)]
    for operation in made:
        expected = operation.run()
        torch.cuda.synchronize()
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(operation.run())
        torch.cuda.synchronize()
        assert all(same_bits(result, expected) for result in results), operation.name
