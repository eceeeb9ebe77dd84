"""Blocks that take turns: right in every order of blocks and threads, and each error with them is reported."""

import numpy as np
import pytest

INPUT = np.linspace(-3, 5, 64, dtype=np.float32)
BLOCKS = 5


def probe(emulator, name, num_blocks=BLOCKS):
    return lambda options: emulator.probe(name, INPUT, options, num_blocks=num_blocks)


def kinds(points):
    return [point.split()[1] for point in points]


def test_blocks_add_in_the_order_of_their_tickets(emulator, every_way, assert_each_sync_point_matters):
    run = probe(emulator, "add_in_turn")
    expected = np.float32(0)
    for ticket in range(BLOCKS):
        expected = expected / np.float32(3) + np.roll(INPUT, -ticket)
    np.testing.assert_array_equal(every_way(run)[0], expected)
    points = assert_each_sync_point_matters(run)
    assert sorted(kinds(points)) == ["commit_copies", "pass_turn", *["sync_block"] * 3, "wait_copies", "wait_for_turn"]


def test_turns_are_counted(emulator):
    _, report = probe(emulator, "add_in_turn")(emulator.Options())
    passed = {point.split()[1]: count for point, count in report.sync_points.items()}
    assert passed["wait_for_turn"] == passed["pass_turn"] == 2 * BLOCKS


def test_a_turn_hands_on_what_others_did(emulator, every_way, assert_each_sync_point_matters):
    run = probe(emulator, "hand_on_what_others_did", num_blocks=4)
    out, _ = every_way(run)
    np.testing.assert_array_equal(out[:5], [*INPUT[:4], INPUT[:4].sum()])
    assert kinds(assert_each_sync_point_matters(run)) == ["wait_for_turn", "pass_turn"]


def test_a_block_may_pass_a_turn_to_itself(emulator, every_way, assert_each_sync_point_matters):
    run = probe(emulator, "turn_within_a_warp", num_blocks=1)
    assert every_way(run)[0][1] == INPUT[0]
    assert sorted(kinds(assert_each_sync_point_matters(run))) == ["pass_turn", "wait_for_turn"]


# What add_in_turn leaves out, as the how-manieth of its points of that name -> what is reported.
SKIPPED = {
    ("wait_for_turn", 0): r"race: .* of (out|counters); block \d, thread \d+ (wrote it|passed the turn at it) at",
    ("pass_turn", 0): r"deadlock: probes_turns.cuh:\d+:\d+ wait_for_turn waits for turn 1 at byte [48] of counters, "
    "which stands at 0; only blocks with lower tickets can pass it",
    ("sync_block", 1): r"race: .* reads 4 bytes at byte \d+ of out; block \d, thread \d+ wrote it",
    ("sync_block", 2): r"race: .* reads 4 bytes at byte \d+ of out; block \d, thread \d+ wrote it",
}


@pytest.mark.parametrize("what, number", SKIPPED)
def test_a_missing_step_is_named(what, number, emulator, options):
    run = probe(emulator, "add_in_turn")
    named = [point for point in run(options)[1].sync_points if point.endswith(what)]
    options.skip = sorted(named, key=lambda point: int(point.split(":")[1]))[number]
    with pytest.raises(emulator.Failure, match=SKIPPED[what, number]):
        run(options)


# Kernel -> what the report says of three blocks.
ERRORS = {
    "passes_without_a_wait": r"race: .* writes 4 bytes at byte 0 of counters; block \d, thread 0 passed the turn at "
    r"it at probes_turns.cuh:\d+:\d+ and nothing orders the two$",
    "passes_a_turn_that_others_wait_for": r"race: .* of counters; block \d, thread 0 waited for its turn at it",
    "resets_a_counter": r"race: .* writes .* of counters; thread 0 wrote it at .* and a place is for tickets, for "
    "turns or for ordinary accesses",
    "reads_a_ticket_counter": r"race: .* reads .* of counters; thread 0 took a ticket from it at .* and a place is for",
    "reads_a_turn": r"race: .* writes .* of counters; thread 0 read it at .* and a place is for",
    "overwrites_a_turn": r"race: .* writes .* of counters; thread 0 passed the turn at it at .* and a place is for",
    "tickets_from_a_turn": r"race: .* writes .* of counters; thread 0 passed the turn at it at .* and a place is for",
    "turn_past_the_end": "out of bounds: reads 4 bytes at byte 256 of counters, which has 256",
    "passes_a_turn_at_an_input": "writes 4 bytes at byte 0 of in, which has 256 and is an input",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_reported(name, emulator, options):
    with pytest.raises(emulator.Failure, match=ERRORS[name]):
        probe(emulator, name, num_blocks=3)(options)


def test_turns_of_block_indices_depend_on_who_starts_first(emulator):
    run = probe(emulator, "turn_of_block_index")
    run(emulator.Options(order="forward"))
    for order in ("reverse", "shuffled"):
        with pytest.raises(emulator.Failure, match=r"deadlock: .* waits for turn [1-4] at byte 8 of counters"):
            run(emulator.Options(order=order, seed=1))
