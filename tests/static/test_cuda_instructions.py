"""The machine code holds what the kernels mean: read with the disassembler that the `test` extra installs."""

import re

import pytest

from cuda_build import CHIPS
from cuda_kernels import KERNELS

each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
each_chip = pytest.mark.parametrize("chip", CHIPS)

LOCAL = {"LDL", "STL"}
ATOMIC = {"RED", "REDG", "REDS", "ATOM", "ATOMG", "ATOMS"}


@pytest.fixture
def code_of(instantiations, machine_code):
    """(entry, its opcodes) of each instantiation of a kernel on one chip."""

    def read(kernel, chip):
        return [(entry, machine_code.sass[chip, entry.mangled]) for entry in instantiations(kernel, chip)]

    return read


@each_kernel
@each_chip
def test_holds_what_was_meant(kernel, chip, code_of):
    used = set()
    for entry, opcodes in code_of(kernel, chip):
        arguments = ", ".join(entry.arguments)
        chosen = [(where, pattern) for where, pattern in kernel.holds_where if re.search(where, arguments)]
        used.update(chosen)
        on_chip = [pattern for where, pattern in kernel.holds_on if where == chip]
        for pattern in (*kernel.holds, *on_chip, *(pattern for _, pattern in chosen)):
            assert any(re.fullmatch(pattern, opcode) for opcode in opcodes), f"no {pattern} in {entry.function}"
    assert used == set(kernel.holds_where), "a condition that no instantiation meets checks nothing"


@each_kernel
@each_chip
def test_no_local_memory(kernel, chip, code_of):
    for entry, opcodes in code_of(kernel, chip):
        assert LOCAL.isdisjoint(opcode.split(".")[0] for opcode in opcodes), entry.function


# Atomics would make sums of floats depend on timing.
@each_kernel
@each_chip
def test_no_atomic_sums(kernel, chip, code_of):
    for entry, opcodes in code_of(kernel, chip):
        atomics = [opcode for opcode in opcodes if opcode.split(".")[0] in ATOMIC]
        assert not any(re.search(r"\.B?F(16|32|64)", opcode) for opcode in atomics), f"{entry.function}: {atomics}"
        assert not atomics or kernel.integer_atomics, f"{entry.function}: {atomics}, and its row does not say what for"


def test_later_chips_find_ptx(machine_code):
    for names in machine_code.ptx:
        assert any("sm_90" in name or "compute_90" in name for name in names), names
