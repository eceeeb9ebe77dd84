"""Phases of mbarriers: the emulator accepts a random program if and only if all its interleavings agree.

The model has no happens-before. It walks through every order in which threads and copies may act, and calls a program
right if each operation meets one phase in all of them, every thread comes to its end, and no phase is left half full.
"""

import functools
import random

import numpy as np

ARRIVE, ARRIVE_AFTER_COPIES, WAIT = "arrive_at_mbarrier", "arrive_after_copies", "wait_at_mbarrier"
BARRIERS, COUNT = 2, 2  # the program's mbarriers are for two arrivals
WARPS = 3  # a thread of each acts


def right(program):
    """`program` has a list of (operation, barrier, parity) for each thread."""
    met = {}  # (thread, step) -> the phase that it arrives in or waits for
    start = (
        (0,) * len(program),
        ((0, 0),) * BARRIERS,
        frozenset(),
    )  # steps done; phases and arrivals; copies under way
    seen, left = {start}, [start]
    while left:
        steps, barriers, under_way = left.pop()
        moves = []

        def arrive(who, barrier, steps, under_way, barriers=barriers, moves=moves):
            phase, arrived = barriers[barrier]
            after = (phase + 1, 0) if arrived + 1 == COUNT else (phase, arrived + 1)
            moves.append((who, phase, (steps, (*barriers[:barrier], after, *barriers[barrier + 1 :]), under_way)))

        for who, barrier in under_way:
            arrive(who, barrier, steps, under_way - {(who, barrier)})
        for thread, operations in enumerate(program):
            who = (thread, steps[thread])
            if steps[thread] == len(operations):
                continue
            operation, barrier, parity = operations[steps[thread]]
            ahead = (*steps[:thread], steps[thread] + 1, *steps[thread + 1 :])
            if operation == ARRIVE:
                arrive(who, barrier, ahead, under_way)
            elif operation == ARRIVE_AFTER_COPIES:
                moves.append((who, None, (ahead, barriers, under_way | {(who, barrier)})))
            elif barriers[barrier][0] & 1 != parity:
                moves.append((who, barriers[barrier][0] - 1, (ahead, barriers, under_way)))
        for who, phase, state in moves:
            if phase is not None and met.setdefault(who, phase) != phase:
                return False
            if state not in seen:
                seen.add(state)
                left.append(state)
        done = all(step == len(operations) for step, operations in zip(steps, program, strict=True))
        if not moves and (not done or any(arrived for _, arrived in barriers)):
            return False
    return True


def random_operation(choose, names, barrier):
    return choose.choice(names), barrier, choose.randrange(2)


@functools.cache
def random_program(seed):
    """(program, whether it is right). Most were right before an operation was added, left out or exchanged."""
    choose = random.Random(seed)
    program = [[] for _ in range(WARPS)]
    for _ in range(32):
        names = choose.choice([[WAIT], [ARRIVE, ARRIVE_AFTER_COPIES]])
        barrier = choose.randrange(BARRIERS)
        longer = [list(steps) for steps in program]
        for _ in range(1 if names == [WAIT] else COUNT):
            choose.choice(longer).append(random_operation(choose, names, barrier))
        if right(longer):
            program = longer
    if choose.random() < 0.7:
        operation = random_operation(choose, [WAIT, ARRIVE, ARRIVE_AFTER_COPIES], choose.randrange(BARRIERS))
        steps = choose.choice(program)
        at = choose.randrange(len(steps) + 1)
        steps[at : at + choose.randrange(2)] = [operation] * choose.randrange(2)
    return program, right(program)


def test_the_model_knows_what_is_right():
    arrive, copies, wait = (ARRIVE, 0, 0), (ARRIVE_AFTER_COPIES, 0, 0), ((WAIT, 0, 0), (WAIT, 0, 1))
    meet = [arrive, wait[0], arrive, wait[1], arrive, wait[0]]
    assert right([meet, meet])
    assert not right([meet, meet[:-2]])  # too few
    assert not right([meet, meet, [arrive, arrive]])  # too many
    assert not right([meet, meet, [wait[0]]])  # two phases behind
    assert not right([meet, [*meet, wait[1]]])  # for ever
    assert right([[copies, copies, wait[0], copies, copies]])
    assert not right([[copies, arrive, copies, arrive]])


def test_phases_are_those_of_all_interleavings(emulator, options):
    num_right, seeds = 0, range(250)
    codes = emulator.Operation.__members__
    for seed in seeds:
        program, expected = random_program(seed)
        operations, places = np.zeros((2, 1, 32 * WARPS, max(1, *map(len, program))), np.int32)
        for thread, steps in enumerate(program):
            for i, (name, barrier, parity) in enumerate(steps):
                operations[0, 32 * thread, i] = int(codes[name])
                places[0, 32 * thread, i] = 2 * barrier + parity if name == WAIT else barrier
        message = ""
        try:
            emulator.program(operations, places, options)
        except emulator.Failure as failure:
            message = str(failure)
        assert (not message) == expected, f"program {seed}: {program}: {message}"
        num_right += expected
    assert len(seeds) / 4 < num_right < len(seeds) * 3 / 4
