"""mbarriers: right kernels whose every synchronisation point matters, and each error with them is reported."""

import numpy as np
import pytest

INPUT = np.linspace(-3, 5, 64, dtype=np.float32)


def probe(emulator, name, inputs=INPUT):
    return lambda options: emulator.probe(name, inputs, options)


# name -> what it makes of its input
RIGHT_KERNELS = {
    "pipeline_of_copies": lambda x: x.reshape(8, 8)[:, ::-1].ravel(),
    "reverse_by_mbarrier": lambda x: x[::-1] + 1,
    "copies_told_by_others": lambda x: x[::-1],
}


@pytest.mark.parametrize("name", RIGHT_KERNELS)
def test_right_kernels(name, emulator, every_way):
    out, _ = every_way(probe(emulator, name))
    np.testing.assert_array_equal(out, RIGHT_KERNELS[name](INPUT))


def kinds(points):
    return sorted(point.split()[1] for point in points)


def test_each_step_of_a_pipeline_matters(emulator, assert_each_sync_point_matters):
    points = assert_each_sync_point_matters(probe(emulator, "pipeline_of_copies"))
    assert kinds(points) == [
        "mbarrier_arrive",
        "mbarrier_arrive_after_copies",
        *["mbarrier_init"] * 2,
        *["mbarrier_wait"] * 2,
        "sync_block",
    ]


def test_each_phase_matters(emulator, assert_each_sync_point_matters):
    points = assert_each_sync_point_matters(probe(emulator, "reverse_by_mbarrier"))
    assert kinds(points) == [*["mbarrier_arrive"] * 3, "mbarrier_init", *["mbarrier_wait"] * 3, "sync_block"]


def test_who_waits_tells_others_of_copies(emulator, assert_each_sync_point_matters):
    points = assert_each_sync_point_matters(probe(emulator, "copies_told_by_others"))
    assert kinds(points) == ["mbarrier_arrive_after_copies", "mbarrier_init", "mbarrier_wait", *["sync_block"] * 3]


def test_threads_may_wait_for_alternate_phases(emulator, every_way, assert_each_sync_point_matters):
    run = probe(emulator, "waits_for_alternate_phases")
    out, _ = every_way(run)
    np.testing.assert_array_equal(out, np.repeat(INPUT[:2], 32))
    assert_each_sync_point_matters(run)


def test_operations_are_counted(emulator):
    _, report = probe(emulator, "pipeline_of_copies")(emulator.Options())
    passed = {}
    for point, count in report.sync_points.items():
        passed[point.split()[1]] = passed.get(point.split()[1], 0) + count
    # 8 steps; 2 lanes copy, 8 read
    assert passed == {
        "mbarrier_init": 4,
        "sync_block": 64,
        "mbarrier_wait": 8 * (2 + 8),
        "mbarrier_arrive_after_copies": 8 * 2,
        "mbarrier_arrive": 8 * 8,
    }


AT = r"probes_mbarriers\.cuh:\d+:\d+"
# Kernel -> what the report says.
ERRORS = {
    "store_before_arrive_after_copies": rf"block 0, thread 32: race: {AT} reads 4 bytes at byte 0 of shared memory; "
    rf"thread 0 wrote it at {AT} and nothing orders the two",
    "copy_after_arrive_after_copies": r"race: .* thread (0 copied to it asynchronously|32 read it) at",
    "arrive_with_copies_under_way": r"race: .* reads 4 bytes .*; thread 0 copied to it asynchronously at",
    "mbarrier_that_nobody_initialised": rf"block 0, thread \d+: {AT} mbarrier_arrive: the mbarrier at byte 256 of "
    "shared memory was not initialised",
    "mbarrier_used_beside_its_init": rf"thread 40: race: {AT} reads 8 bytes at byte 256 of shared memory; thread 0 "
    rf"initialised the mbarrier in it at {AT} and nothing orders the two|thread 40: .* was not initialised",
    "mbarrier_initialised_again": rf"thread 0: {AT} mbarrier_init: the mbarrier at byte 256 of shared memory was "
    rf"initialised at {AT}",
    "too_many_arrivals": rf"too many arrivals: {AT} mbarrier_arrive in phase 1 of the mbarrier at byte 256 of shared "
    rf"memory, for 32 arrivals; thread \d+ arrived in phase 0 at {AT} and nothing orders the two",
    "too_many_arrivals_after_copies": rf"too many arrivals: {AT} mbarrier_arrive in phase 1 .* for 1 arrivals; "
    "thread 0 arrived in phase 0",
    "too_few_arrivals": rf"deadlock: no thread of the block can run. Threads 0-63 wait at {AT} mbarrier_wait for "
    "phase 0 of the mbarrier at byte 256 of shared memory, which has 40 of 64 arrivals",
    "arrivals_left_at_mbarrier": r"block 0: returned with 40 of 64 arrivals in phase 0 of the mbarrier at byte 256 of "
    rf"shared memory, for which nobody waited; the last: thread \d+ arrived in phase 0 at {AT}",
    "copies_left_at_mbarrier": r"block 0: returned with 1 of 2 arrivals in phase 0 of the mbarrier at byte 256 .*; "
    "the last: thread 0",
    "waiter_two_phases_behind": rf"race: thread 0 arrives last in phase 1 at {AT} .*; thread 40 waited "
    rf"for phase 0 at {AT} .* nothing orders the two|race: {AT} mbarrier_wait for parity 0 meets phase 2 of the mbarrier "
    rf"at byte 256 of shared memory; thread 0 arrived in phase 1 at {AT} and nothing orders the two: .* for phase 0",
    "waiter_a_phase_early": rf"race: .* thread 40 waited for phase -1 at {AT}|race: {AT} mbarrier_wait for parity 1 "
    rf"meets phase 1 .*; thread 0 arrived in phase 0 at {AT}",
    "consumer_starts_at_parity_1": r"race: .* thread (0 wrote it|40 waited for phase -1|40 read it|0 arrived in phase 0)",
    "reads_an_mbarrier": rf"thread 0: race: {AT} reads 4 bytes at byte 260 of shared memory; thread 0 initialised the "
    rf"mbarrier in it at {AT} and the bytes of an mbarrier are for nothing else",
    "copies_over_an_mbarrier": rf"race: {AT} writes 4 bytes at byte 256 of shared memory; thread 0 initialised the "
    "mbarrier in it .* and the bytes of an mbarrier are for nothing else",
    "mbarrier_in_written_bytes": rf"race: {AT} writes 8 bytes at byte 0 of shared memory; thread 0 wrote it .* and the "
    "bytes of an mbarrier are for nothing else",
    "misaligned_mbarrier": rf"misaligned: {AT} writes 8 bytes at byte 4 of shared memory",
    "mbarrier_in_global_memory": rf"out of bounds: {AT} writes 8 bytes at byte -?\d+ of shared memory",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_reported(name, emulator, options):
    with pytest.raises(emulator.Failure, match=ERRORS[name]):
        probe(emulator, name)(options)


# Count and parity -> message.
NUMBERS = [
    ((0, 1), r"mbarrier_init: 0 arrivals, must be 1 to 1048575"),
    ((1 << 20, 1), r"mbarrier_init: 1048576 arrivals, must be 1 to 1048575"),
    ((1, 2), r"mbarrier_wait: parity 2, must be 0 or 1"),
    ((1, -1), r"mbarrier_wait: parity -1, must be 0 or 1"),
]


@pytest.mark.parametrize("numbers, message", NUMBERS)
def test_numbers_are_checked(numbers, message, emulator):
    with pytest.raises(emulator.Failure, match=message):
        probe(emulator, "mbarrier_of_numbers", np.resize(np.float32(numbers), 64))(emulator.Options())


def test_the_phase_before_the_first_is_complete(emulator, options):
    probe(emulator, "mbarrier_of_numbers", np.resize(np.float32([(1 << 20) - 1, 1]), 64))(options)
