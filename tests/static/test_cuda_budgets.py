"""What nvcc makes of the device code fits: registers, shared memory and time to compile; nothing lives in local memory.

No GPU is needed. The budgets stand beside the configurations in csrc/kernels, the kernels in cuda_kernels.py.
"""

import re

import pytest

from cuda_build import CHIPS, makespan
from cuda_kernels import KERNELS

each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
each_chip = pytest.mark.parametrize("chip", CHIPS)

# Of a multiprocessor, and the most that one block may ask for.
SM_SHARED, BLOCK_SHARED = {"80": 164 << 10, "90": 228 << 10}, {"80": 163 << 10, "90": 227 << 10}
RESERVED_SHARED = 1024  # per block, for the system
COMPILE_SECONDS = 300


def test_every_kernel_has_a_row(cuda_entries):
    for entry in cuda_entries:
        assert entry.kernel in KERNELS, entry.function


# More would cost time to compile and memory of every process, and fewer would be missed only at a launch.
@each_kernel
@each_chip
def test_instantiations(kernel, chip, cuda_entries):
    functions = [entry.function for entry in cuda_entries if (entry.kernel, entry.chip) == (kernel, chip)]
    assert len(functions) == kernel.instantiations, "\n".join(functions)


@each_kernel
@each_chip
def test_registers(kernel, chip, instantiations, cuda_budgets):
    for entry in instantiations(kernel, chip):
        budget = cuda_budgets[kernel, tuple(entry.arguments)]
        assert entry.registers <= budget.max_registers, entry.function
        assert budget.blocks > 0, f"{entry.function}: not even one block fits a multiprocessor"


@each_kernel
@each_chip
def test_no_local_memory(kernel, chip, instantiations):
    for entry in instantiations(kernel, chip):
        assert (entry.stack, entry.spill_stores, entry.spill_loads) == (0, 0, 0), entry.function


# A multiprocessor holds as many blocks by shared memory as by registers, unless the row says where it does not.
@each_kernel
@each_chip
def test_shared_memory(kernel, chip, instantiations, cuda_budgets):
    bound = [pattern for where, pattern in kernel.shared_bound if where == chip]
    for entry in instantiations(kernel, chip):
        budget = cuda_budgets[kernel, tuple(entry.arguments)]
        assert entry.static_shared == 0, f"{entry.function}: Smem must start where shared memory starts"
        assert budget.shared <= BLOCK_SHARED[chip], entry.function
        fits = budget.blocks * (budget.shared + RESERVED_SHARED) <= SM_SHARED[chip]
        expected = not any(re.search(pattern, ", ".join(entry.arguments)) for pattern in bound)
        assert fits == expected, f"{entry.function}: {budget}"


# Processor seconds, as two cores without neighbours would spend them.
def test_time_to_compile(cuda_objects):
    assert makespan([seconds for _, _, seconds in cuda_objects]) < COMPILE_SECONDS
