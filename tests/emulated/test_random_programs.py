"""The emulator reports a race in a random program if and only if a model, written to be plain, finds one."""

import functools
import random

import numpy as np
import pytest

THREADS, STEPS = 96, 40
ROWS, WORDS = 2, 4  # in shared and in global memory
FIRST_GLOBAL = 4 * ROWS  # the model's words: those of the rows, then those in global memory
EVERYBODY = range(THREADS)
WARPS = [range(first, first + 32) for first in range(0, THREADS, 32)]


class Model:
    """Happens-before as sets of events, in the bits of Python's integers: no clocks, and nothing is forgotten."""

    def __init__(self):
        self.num_events = 0
        self.reads, self.writes = ([0] * (FIRST_GLOBAL + WORDS) for _ in range(2))  # of each word
        self.passed = []  # of each turn: the events before it
        self.start_block()

    def start_block(self):
        self.known = [0] * THREADS  # the events before a thread's next one
        self.told = [0] * THREADS  # those that barriers and turns told it of
        self.arrived = []  # at each mbarrier: the events before its wait
        self.reads[:FIRST_GLOBAL] = self.writes[:FIRST_GLOBAL] = [0] * FIRST_GLOBAL
        self.copied = [0] * THREADS  # its copies
        self.issued = [[] for _ in EVERYBODY]  # of those, the ones that are not committed
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
            self.copied[thread] |= event
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
            self.tell(thread, known)

    def tell(self, thread, events):
        self.told[thread] |= events
        self.known[thread] |= events

    def arrive(self, threads_by_copies):
        before = 0
        for thread, by_copies in threads_by_copies:
            before |= self.told[thread] | self.copied[thread] if by_copies else self.known[thread]
        self.arrived.append(before)


def accesses(operation, threads, places):
    """(thread, words, whether it writes) of each access."""
    rows = [range(4 * place, 4 * place + 4) for place in places]
    if operation == "load_matrices":  # lane i gives row i; four lanes receive of it
        return [(threads[j], rows[i], False) for i in range(32) for j in {i, *range(i % 8 * 4, i % 8 * 4 + 4)}]
    words = rows if "row" in operation else [[place + ("global" in operation) * FIRST_GLOBAL] for place in places]
    return [(thread, taken, "load" not in operation) for thread, taken in zip(threads, words, strict=True)]


class Program:
    """A random program: nearly always in order, and at most its last access races."""

    def __init__(self, emulator, seed, num_blocks):
        self.codes = {name: int(code) for name, code in emulator.Operation.__members__.items()}
        self.choose = random.Random(seed)
        self.caution = 0.9 if num_blocks == 1 else 0.98  # how likely it is not to race where it could
        self.model = Model()
        self.operations, self.places = np.zeros((2, num_blocks, THREADS, STEPS), np.int32)
        self.race = False
        acts = [self.touch, self.touch, self.copying, self.matrices, self.synchronise, self.mbarrier]
        if num_blocks > 1:
            acts += [self.touch_global, self.touch_global, self.turn, self.turn, self.synchronise]
        for self.block in range(num_blocks):
            self.active = self.choose.sample(self.choose.choice([EVERYBODY, *WARPS]), 3)  # who acts alone
            self.num_named = 0
            self.num_passed_before = len(self.model.passed)
            self.model.start_block()
            for step in range(STEPS):
                self.choose.choice(acts)(step)
                if self.race:
                    return

    def put(self, step, operation, threads, places):
        self.operations[self.block, threads, step] = self.codes[operation]
        self.places[self.block, threads, step] = places

    def put_access(self, step, operation, threads, places):
        taken = accesses(operation, threads, places)
        race = any(self.model.races(*one) for one in taken)
        if race and self.choose.random() < self.caution:
            return
        self.race = race
        self.put(step, operation, threads, places)
        for one in taken:
            self.model.access(*one, by_copy=operation == "copy_row")

    def touch(self, step):
        operation = self.choose.choice(["load_word", "load_word", "load_row", "store_word", "store_row", "copy_row"])
        place = self.choose.randrange(4 * ROWS if "word" in operation else ROWS)
        self.put_access(step, operation, [self.choose.choice(self.active)], [place])

    def touch_global(self, step):
        operation = self.choose.choice(["load_global", "load_global", "store_global"])
        self.put_access(step, operation, [self.choose.choice(self.active)], [self.choose.randrange(WORDS)])

    def turn(self, step):  # each is passed once, and waited for by later blocks
        thread, passed = self.choose.choice(self.active), self.model.passed
        if self.num_passed_before and self.choose.random() < 0.7:
            turn = self.choose.randrange(self.num_passed_before)
            self.put(step, "wait_for_turn", [thread], turn)
            self.model.tell(thread, passed[turn])
        else:
            self.put(step, "pass_turn", [thread], len(passed))
            passed.append(self.model.known[thread])

    def mbarrier(self, step):  # two threads or their copies arrive at each, and any may wait
        if self.model.arrived and self.choose.random() < 0.6:
            thread, barrier = self.choose.choice(self.active), self.choose.randrange(len(self.model.arrived))
            self.put(step, "wait_at_mbarrier", [thread], barrier)
            self.model.tell(thread, self.model.arrived[barrier])
        else:
            arrivals = [(thread, self.choose.random() < 0.5) for thread in self.choose.sample(self.active, 2)]
            for thread, by_copies in arrivals:
                operation = "arrive_after_copies" if by_copies else "arrive_at_mbarrier"
                self.put(step, operation, [thread], len(self.model.arrived))
            self.model.arrive(arrivals)

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


@pytest.mark.parametrize("num_blocks, first_seed", [(1, 0), (1, 250), (1, 500), (1, 750), (4, 1000), (4, 1250)])
def test_races_are_those_of_the_model(num_blocks, first_seed, emulator, options):
    races, seeds = 0, range(first_seed, first_seed + 250)
    for seed in seeds:
        one = program(emulator, seed, num_blocks)
        races += one.race
        try:
            emulator.program(one.operations, one.places, options)
            found = False
        except emulator.Failure as failure:
            assert "race" in str(failure), f"program {seed}: {failure}"
            found = True
        assert found == one.race, f"program {seed}"
    assert len(seeds) / 4 < races < len(seeds) * 3 / 4
