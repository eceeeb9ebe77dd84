"""The emulator, and the ways in which every kernel must give the same bits."""

import pytest
import torch

import emulator_module

# Forward and reverse, and one order that no loop would produce; copies land as early or as late as they may.
WAYS = [
    {"order": order, "landing": landing, "seed": 1}
    for order in ("forward", "reverse", "shuffled")
    for landing in ("issue", "wait")
]


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_torch():
    """The oracles' tensors are small: more threads would spin more than they work, on cores that others could use."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def emulator():
    return emulator_module.load()


@pytest.fixture(params=WAYS, ids=lambda way: f"{way['order']}-{way['landing']}")
def options(request, emulator):
    """Each way to run, in turn."""
    return emulator.Options(**request.param)


@pytest.fixture
def every_way(emulator):
    """Runs `run(options) -> (*arrays, report)` in every way, asserts equal bits and returns the first result."""

    def run_all(run):
        results = [run(emulator.Options(**way)) for way in WAYS]
        for way, result in zip(WAYS, results, strict=True):
            for array, first in zip(result[:-1], results[0][:-1], strict=True):
                assert array.tobytes() == first.tobytes(), f"{way} gives other bits than {WAYS[0]}"
        return results[0]

    return run_all


@pytest.fixture
def assert_each_sync_point_matters(emulator):
    """Skips each synchronisation point of `run` in turn: every way of running must fail.

    A result may still be right: what is asked is that the emulator reports what is wrong with the program.
    """

    def check(run):
        points = list(run(emulator.Options())[-1].sync_points)
        assert points, "the kernel has no synchronisation point"
        for point in points:
            for way in WAYS:
                with pytest.raises(
                    emulator.Failure, match=r"race|deadlock|nobody waited|not initialised|too many arrivals"
                ):
                    run(emulator.Options(skip=point, **way))
        return points

    return check


@pytest.fixture
def attention(emulator, every_way):
    """`attention(rows, multiprocessors)` runs tree attention: attention_runs.py."""
    from attention_runs import Runner

    return lambda rows=64, multiprocessors=1: Runner(emulator, every_way, WAYS, rows, multiprocessors)


@pytest.fixture
def backward(emulator, every_way):
    """`backward(multiprocessors)` runs the gradients of tree attention: backward_runs.py."""
    from backward_runs import BackwardRunner

    return lambda multiprocessors=1: BackwardRunner(emulator, every_way, WAYS, multiprocessors)
