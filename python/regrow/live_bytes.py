"""Live bytes of torch's allocator, which two runs of equal work repeat exactly; resident memory does not."""

import os
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Measured:
    """What `run` returned, and bytes beyond those before it: the most live at once, and those live at its end."""

    result: object
    peak: int
    end: int


def measure_bytes(run, device="cpu"):
    """Calls `run()` and returns a `Measured` of the allocations on `device`, which no other work should share.

    On CUDA it resets torch's peak statistics. Raises RuntimeError on the CPU while a profiler is running.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        peak = torch.cuda.max_memory_allocated(device) - before
        return Measured(result, peak, torch.cuda.memory_allocated(device) - before)
    if torch.autograd._profiler_enabled():
        raise RuntimeError("live bytes are counted by torch's profiler, and one is running: stop it first")
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with silent_stderr():
        profiler.start()
    try:
        result = run()
    finally:
        with silent_stderr():
            profiler.stop()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return Measured(result, peak, live)


def peak_bytes(run, device="cpu"):
    """Returns (what `run` returns, the most bytes on `device` that it had allocated at once beyond those before)."""
    measured = measure_bytes(run, device)
    return measured.result, measured.peak


@contextmanager
def silent_stderr():
    """The profiler's library announces itself on the process's stderr, which would tear a progress bar."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
