"""Live bytes of torch's allocator, which two runs of equal work repeat exactly; resident memory does not."""

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run):
    """Returns (what `run` returns, the most bytes it had allocated at once beyond what was there before)."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return result, peak
