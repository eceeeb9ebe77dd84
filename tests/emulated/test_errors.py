"""The emulator notices each kind of error, in every order of threads, and says where it is."""

import numpy as np
import pytest

# Kernel -> what the report says. Line numbers belong to csrc/emulator/probes.cuh.
ERRORS = {
    "race_with_right_result": r"race: probes\.cuh:\d+:\d+ writes 4 bytes at byte 0 of shared memory; "
    r"thread \d+ wrote it at probes\.cuh:\d+:\d+ and nothing orders the two",
    "shuffle_instead_of_barrier": r"race: .* reads 4 bytes .* of shared memory; thread \d+ wrote it",
    "warp_barrier_between_warps": r"race: .* of shared memory; thread \d+ (wrote|read) it",
    "global_race_in_block": r"race: .* writes 4 bytes .* of out; thread \d+ wrote it",
    "writes_past_the_end": r"thread 63: probes\.cuh:\d+:\d+ out of bounds: writes 4 bytes at byte 256 of out, "
    "which has 256",
    "reads_past_the_end": r"thread 63: .* out of bounds: reads 4 bytes at byte 256 of in, which has 256",
    "writes_an_input": r"writes 4 bytes at byte \d+ of in, which has 256 and is an input",
    "narrow_access": "an access of 1 bytes, but races are looked for in cells of 4: make them smaller",
    "misaligned_global": r"misaligned: .* reads 16 bytes at byte \d+ of in",
    "index_past_shared_array": r"thread 63: index 64 is outside a shared array of 64",
    "row_past_a_tile": r"row 8, column 0 of a tile \[8, 64\]",
    "more_shared_than_launched": r"the kernel's Smem has 8448 bytes, the launch asked for 8192",
    "misaligned_shared": r"misaligned: .* writes 16 bytes at byte \d+ of shared memory",
    "misaligned_copy_to_shared": r"misaligned: .* writes 8 bytes at byte 4 of shared memory",
    "misaligned_copy_from_global": r"misaligned: .* reads 8 bytes at byte 4 of in",
    "copy_past_shared": r"out of bounds: .* writes 16 bytes at byte 8192 of shared memory, which has 8192",
    "divergent_barrier": r"divergent barrier: .* another lane of the warp came to it at",
    "barrier_without_returned_threads": r"deadlock: .*Threads 0-39 wait at probes.* sync_block; "
    "threads 40-63 returned",
    "barriers_in_opposite_order": r"deadlock: .*Threads 0-31 wait at .* sync_named of barrier 1; "
    "threads 32-63 wait at .* of barrier 2",
    "arrival_left_over": r"block 0: returned with 32 arrivals at barrier 1 for which nobody waited",
    "divergent_collective": r"divergent collective: .* another lane of the warp is at",
    "stuck_lanes": r"deadlock: .*threads 7-7 returned; threads 8-\d+ wait at .* shuffle",
    "shuffle_outside_its_mask": r"probes\.cuh:\d+:\d+ shuffle: lane \d+ is not in its own mask",
    "overlapping_masks": r"divergent collective: .* for other lanes|deadlock: .* shuffle",
    "shuffle_from_absent_lane": r"shuffle reads lane 16, which takes no part",
}

# These need two blocks; either may run first.
ERRORS_OF_BLOCKS = {
    "two_blocks_write_one_address": r"block [01], thread \d+: race: .* of out; block [01], thread \d+ wrote it",
    "reads_what_another_block_writes": r"block 1, thread \d+: race: .* reads .* of out; block 0, thread \d+ wrote it"
    r"|block 0, thread \d+: race: .* writes .* of out; block 1, thread \d+ read it",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_reported(name, emulator, options):
    with pytest.raises(emulator.Failure, match=ERRORS[name]):
        emulator.probe(name, np.ones(64, np.float32), options)


@pytest.mark.parametrize("name", ERRORS_OF_BLOCKS)
def test_errors_between_blocks_are_reported(name, emulator, options):
    inputs = np.ones(64, np.float32)
    emulator.probe(name, inputs, options)
    with pytest.raises(emulator.Failure, match=ERRORS_OF_BLOCKS[name]):
        emulator.probe(name, inputs, options, num_blocks=2)


# Barrier, threads by warp 0, threads by warp 1 -> message.
NAMED_BARRIERS = [
    ((0, 64, 64), "barrier 0 is sync_block's, use 1 to 15"),
    ((16, 64, 64), "barrier 16, a block has 0 to 15"),
    ((1, 33, 33), "33 threads, must be a multiple of 32 and no more than the block has"),
    ((1, 96, 96), "96 threads, must be a multiple of 32"),
    ((1, 64, 32), r"barrier 1 for (64|32) threads, others came for (64|32)"),
]


@pytest.mark.parametrize("numbers, message", NAMED_BARRIERS)
def test_named_barriers_are_checked(numbers, message, emulator):
    inputs = np.resize(np.float32(numbers), 64)
    with pytest.raises(emulator.Failure, match=message):
        emulator.probe("named_barrier", inputs, emulator.Options())


# Launch -> message.
LAUNCHES = [
    ({"num_threads": 1025}, "a block has 1 to 1024 threads, the launch asks for 1025"),
    ({"shared_bytes": 232449}, "at most 232448 bytes of shared memory, the launch asks for 232449"),
    ({"num_threads": 0}, "a block has 1 to 1024 threads, the launch asks for 0"),
]


@pytest.mark.parametrize("launch, message", LAUNCHES)
def test_launches_are_checked(launch, message, emulator):
    with pytest.raises(emulator.Failure, match=message):
        emulator.probe("shuffles", np.ones(64, np.float32), emulator.Options(), **launch)


def test_unwritten_memory_is_nan(emulator, options):
    out, _ = emulator.probe("reads_unwritten_shared", np.zeros(64, np.float32), options)
    assert np.isnan(out).all()
    out, _ = emulator.probe("strided_stores", np.ones(64, np.float32), options)
    assert np.isnan(out).all()


def test_a_launch_after_an_error_is_as_good_as_new(emulator, options):
    inputs = np.ones(64, np.float32)
    for _ in range(3):
        with pytest.raises(emulator.Failure):
            emulator.probe("stuck_lanes", inputs, options)
        out, _ = emulator.probe("reverse_by_block", inputs, options)
        assert (out == 2).all()


def test_skipping_an_unknown_point_is_an_error(emulator):
    with pytest.raises(emulator.Failure, match="no thread passed the synchronisation point nowhere"):
        emulator.probe("reverse_by_block", np.ones(64, np.float32), emulator.Options(skip="nowhere"))


@pytest.mark.parametrize("option, values", [("order", "forward, reverse or shuffled"), ("landing", "issue or wait")])
def test_options_are_checked(option, values, emulator):
    with pytest.raises(ValueError, match=f"{option} is never, must be {values}"):
        emulator.Options(**{option: "never"})
