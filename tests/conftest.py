"""What every test may ask for: an instruction set, a seeded generator, a number of threads, the device of tests/gpu."""

import pytest
import torch
from hypothesis import settings

import regrow  # noqa: F401

# The first example of a test may load libraries; on a shared machine a deadline tests the neighbours.
settings.register_profile("regrow", deadline=None)
settings.load_profile("regrow")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=("cuda", "cpu"),
        help="where tests/gpu runs: cuda where there is a GPU; on the CPU its bodies run at small sizes",
    )


def _instruction_sets():
    try:
        torch.ops.regrow.cpu_isa("?")
    except ValueError as error:  # "this machine runs avx512, avx2, baseline, not ?"
        return str(error).split("runs ")[1].split(", not")[0].split(", ")
    raise AssertionError("an unknown instruction set was accepted")


@pytest.fixture(params=_instruction_sets())
def isa(request):
    """Runs the test on each instruction set that this machine has."""
    best = torch.ops.regrow.cpu_isa("")
    yield torch.ops.regrow.cpu_isa(request.param)
    torch.ops.regrow.cpu_isa(best)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def num_threads():
    """Restores the number of threads that a test sets."""
    threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread(num_threads):
    """For what depends on the number of threads: a small head takes one or two, by its rows, each with a workspace."""
    num_threads(1)
