"""The emulator reports a race in a random program if and only if a model, written to be plain, finds one."""

import functools
import random

import numpy as np
import pytest

THREADS, STEPS, ROWS = 96, 40, 2
EVERYBODY = range(THREADS)
WARPS = [range(first, first + 32) for first in range(0, THREADS, 32)]


class Model:
    """Happens-before as sets of events, in the bits of Python's integers: no clocks, and nothing is forgotten."""

    def __init__(self):
        self.num_events = 0
        self.known = [0] * THREADS  # the events before a thread's next one
        self.reads, self.writes = [0] * (4 * ROWS), [0] * (4 * ROWS)  # of each word
        self.issued = [[] for _ in EVERYBODY]  # copies that are not committed
        self.groups = [[] for _ in EVERYBODY]

    def races(self, thread, words, write):
        conflicting = 0
        for word in words:
            conflicting |= self.writes[word] | (self.reads[word] if write else 0)
        return bool(conflicting & ~self.known[thread])

    def access(self, thread, words, write, by_copy):
        event = 1 << self.num_events
        self.num_events += 1
        for word in words:
            (self.writes if write else self.reads)[word] |= event
        if by_copy:
            self.issued[thread].append(event)
        else:
            self.known[thread] |= event

    def commit(self, thread):
        self.groups[thread].append(self.issued[thread])
        self.issued[thread] = []

    def wait(self, thread, pending):
        while len(self.groups[thread]) > pending:
            for event in self.groups[thread].pop(0):
                self.known[thread] |= event

    def meet(self, waiting, arriving=()):
        known = 0
        for thread in (*waiting, *arriving):
            known |= self.known[thread]
        for thread in waiting:
            self.known[thread] = known


def accesses(operation, threads, places):
    """(thread, words, whether it writes) of each access."""
    rows = [range(4 * place, 4 * place + 4) for place in places]
    if operation == "load_matrices":  # lane i gives row i; four lanes receive of it
        return [(threads[j], rows[i], False) for i in range(32) for j in {i, *range(i % 8 * 4, i % 8 * 4 + 4)}]
    words = [[place] for place in places] if "word" in operation else rows
    return [(thread, taken, "load" not in operation) for thread, taken in zip(threads, words, strict=True)]


class Program:
    """A random program: nearly always in order, and at most its last access races."""

    def __init__(self, emulator, seed):
        self.codes = {name: int(code) for name, code in emulator.Operation.__members__.items()}
        self.choose = random.Random(seed)
        self.model = Model()
        self.operations, self.places = np.zeros((2, THREADS, STEPS), np.int32)
        self.active = self.choose.sample(self.choose.choice([EVERYBODY, *WARPS]), 3)  # who acts alone
        self.num_named = 0
        self.race = False
        for step in range(STEPS):
            act = self.choose.choice([self.touch, self.touch, self.copying, self.matrices, self.synchronise])
            act(step)
            if self.race:
                break

    def put(self, step, operation, threads, places):
        self.operations[threads, step] = self.codes[operation]
        self.places[threads, step] = places

    def put_access(self, step, operation, threads, places):
        taken = accesses(operation, threads, places)
        race = any(self.model.races(*one) for one in taken)
        if race and self.choose.random() < 0.9:
            return
        self.race = race
        self.put(step, operation, threads, places)
        for one in taken:
            self.model.access(*one, by_copy=operation == "copy_row")

    def touch(self, step):
        operation = self.choose.choice(["load_word", "load_word", "load_row", "store_word", "store_row", "copy_row"])
        place = self.choose.randrange(4 * ROWS if "word" in operation else ROWS)
        self.put_access(step, operation, [self.choose.choice(self.active)], [place])

    def copying(self, step):
        thread = self.choose.choice([thread for thread in self.active if self.model.issued[thread]] or self.active)
        if self.model.issued[thread] and self.choose.random() < 0.8:
            self.put(step, "commit", [thread], 0)
            self.model.commit(thread)
        else:
            operation, pending = self.choose.choice([("wait_for_all", 0), ("wait_for_all_but_one", 1)])
            self.put(step, operation, [thread], 0)
            self.model.wait(thread, pending)

    def matrices(self, step):
        rows = self.choose.choices(self.choose.choices(range(ROWS), k=2), k=32)
        self.put_access(step, "load_matrices", self.choose.choice(WARPS), rows)

    def synchronise(self, step):
        first, second = self.choose.sample(WARPS, 2)
        named = self.num_named < 15 and self.choose.random() < 0.5
        self.num_named += named
        if named and self.choose.random() < 0.5:  # one warp only arrives
            self.put(step, "sync_two_warps", first, self.num_named)
            self.put(step, "arrive_two_warps", second, self.num_named)
            self.model.meet(first, second)
        else:
            both = (*first, *second)
            operation, threads = self.choose.choice([("sync_warp", first), ("sync_block", EVERYBODY)])
            operation, threads = ("sync_two_warps", both) if named else (operation, threads)
            self.put(step, operation, threads, self.num_named)
            self.model.meet(threads)


program = functools.cache(Program)


@pytest.mark.parametrize("seeds", [range(start, start + 250) for start in range(0, 1000, 250)], ids=str)
def test_races_are_those_of_the_model(seeds, emulator, options):
    races = 0
    for seed in seeds:
        one = program(emulator, seed)
        races += one.race
        try:
            emulator.program(one.operations, one.places, options)
            found = False
        except emulator.Failure as failure:
            assert "race" in str(failure), f"program {seed}: {failure}"
            found = True
        assert found == one.race, f"program {seed}"
    assert len(seeds) / 4 < races < len(seeds) * 3 / 4
