"""Times on a GPU: events around calls that are queued ahead, over buffers that together exceed its L2 cache."""

import math
import time

import torch

CLOCK_HZ = 2e9  # no GPU's is much higher: the sleep below may only be too long


class EventTimer:
    """timer(calls) -> seconds per call, as the device saw them.

    A sleep on the device lets the host queue all calls first, so that its own time is not measured unless it exceeds
    the device's.
    """

    def __init__(self):
        self.queueing = 1e-3  # the longest time that queueing took so far

    def __call__(self, calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda._sleep(int(min(2 * self.queueing, 0.2) * CLOCK_HZ))
        start.record()
        for call in calls:
            call()
        end.record()
        self.queueing = max(self.queueing, time.perf_counter() - begin)
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / len(calls)


class HostTimer:
    """The same on the CPU, where it only shows that the code runs."""

    def __call__(self, calls):
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) / len(calls)


def timer_for(device):
    return EventTimer() if device.type == "cuda" else HostTimer()


def num_buffers(device, num_bytes, most=16):
    """How many sets of operands of this size are rotated, so that none is found in L2."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return min(most, max(1, math.ceil(3 * l2 / max(num_bytes, 1))))


class Ceilings:
    """What the device reaches at best, a large product of bf16 and a large copy: to interleave with what they judge."""

    def __init__(self, device, edge=8192, num_bytes=2**30):
        self.operations, self.bytes = 2 * edge**3, 2 * num_bytes
        a, b = (torch.randn(edge, edge, device=device).to(torch.bfloat16) for _ in range(2))
        product = torch.empty_like(a)
        source, target = (torch.randint(256, (num_bytes,), dtype=torch.uint8, device=device) for _ in range(2))
        self.implementations = {
            "matmul": [lambda: torch.mm(a, b, out=product)] * 2,
            "copy": [lambda: target.copy_(source)] * 2,
        }

    def rates(self, times):
        """(operations per second, bytes per second) of the medians."""
        return self.operations / times["matmul"].median, self.bytes / times["copy"].median
