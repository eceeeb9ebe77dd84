"""Phases of mbarriers: the emulator accepts a random program if and only if all its interleavings agree.

The model has no happens-before. It walks through every order in which threads and copies may act, and calls a program
right if each operation meets one phase in all of them, every thread comes to its end, and no phase is left half full.
"""

import functools
import random

import numpy as np
import pytest

BARRIERS, COUNT = 2, 2  # the program's mbarriers are for two arrivals
WARPS = 3  # a thread of each acts


def right(program, at_its_end):
    """`program` has a list of (operation, barrier, parity) for each thread."""
    met = {}  # (thread, step) -> the phase that it arrives in or waits for
    start = ((0,) * len(program), ((0, 0),) * BARRIERS, frozenset())  # steps done; phases and arrivals; copies under way
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
            if operation == "arrive_at_mbarrier":
                arrive(who, barrier, ahead, under_way)
            elif operation == "arrive_after_copies":
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
        if not moves and not (done and not (at_its_end and any(arrived for _, arrived in barriers))):
            return False
    return True


def random_operation(choose):
    name = choose.choice(["arrive_at_mbarrier", "arrive_after_copies", "wait_at_mbarrier", "wait_at_mbarrier"])
    return name, choose.randrange(BARRIERS), choose.randrange(2)


@functools.cache
def random_program(seed):
    """(program, whether it is right): a right one, of which half have one operation more, less or exchanged."""
    choose = random.Random(seed)
    program = [[] for _ in range(WARPS)]

    def extend(thread, operation):
        program[thread].append(operation)
        if not right(program, at_its_end=False):
            program[thread].pop()

    for _ in range(60):
        extend(choose.randrange(WARPS), random_operation(choose))
    for barrier in range(BARRIERS):
        for thread in range(WARPS):
            if sum(arrives and at == barrier for steps in program for arrives, at in map(arrival, steps)) % COUNT:
                extend(thread, ("arrive_at_mbarrier", barrier, 0))
    if choose.random() < 0.6:
        steps = program[choose.randrange(WARPS)]
        at = choose.randrange(len(steps) + 1)
        steps[at : at + choose.randrange(2)] = [random_operation(choose)] * choose.randrange(2)
    return program, right(program, at_its_end=True)


def arrival(operation):
    return "arrive" in operation[0], operation[1]


def test_the_model_knows_what_is_right():
    arrive, wait = (lambda b: ("arrive_at_mbarrier", b, 0)), (lambda b, parity: ("wait_at_mbarrier", b, parity))
    meet = [step for parity in (0, 1, 0) for step in (arrive(0), wait(0, parity))]
    assert right([meet, meet], at_its_end=True)
    assert not right([meet, meet[:-1], [wait(0, 0)]], at_its_end=True)  # two phases behind
    assert not right([meet, meet, [arrive(0)]], at_its_end=False)  # too many
    assert not right([meet, meet[:-2]], at_its_end=True)  # too few
    assert not right([meet, [*meet, wait(1, 0)]], at_its_end=True)  # for ever
    assert right([[arrive(0)]], at_its_end=False)
    assert not right([[arrive(0)]], at_its_end=True)
    copies = ("arrive_after_copies", 0, 0)
    assert right([[copies, copies, wait(0, 0), copies, copies]], at_its_end=True)
    assert not right([[copies, arrive(0), copies]], at_its_end=False)


def test_phases_are_those_of_all_interleavings(emulator, options):
    num_right, seeds = 0, range(300)
    codes = emulator.Operation.__members__
    for seed in seeds:
        program, expected = random_program(seed)
        operations, places = np.zeros((2, 1, 32 * WARPS, max(1, *map(len, program))), np.int32)
        for thread, steps in enumerate(program):
            for i, (name, barrier, parity) in enumerate(steps):
                operations[0, 32 * thread, i] = int(codes[name])
                places[0, 32 * thread, i] = 2 * barrier + parity if name == "wait_at_mbarrier" else barrier
        message = ""
        try:
            emulator.program(operations, places, options)
        except emulator.Failure as failure:
            message = str(failure)
        assert (not message) == expected, f"program {seed}: {program}: {message}"
        num_right += expected
    assert len(seeds) / 4 < num_right < len(seeds) * 3 / 4
