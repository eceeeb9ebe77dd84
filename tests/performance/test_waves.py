"""Blocks on multiprocessors, by hand."""

import pytest

from regrow.performance.waves import run_waves


def clocks(tiles, multiprocessors=1, clocks_per_tile=(10,), **options):
    return run_waves(tiles, multiprocessors, len(clocks_per_tile), clocks_per_tile, **options).clocks


def test_one_block():
    assert clocks([7]) == pytest.approx(70)


def test_no_blocks():
    assert clocks([]) == 0


# Four equal blocks on three multiprocessors: the second wave is one block, and half the time a third is at work.
def test_a_partial_wave():
    run = run_waves([5, 5, 5, 5], 3, 1, [10])
    assert run.clocks == pytest.approx(100)
    assert run.busy == pytest.approx(4 / 6)


def test_the_longest_first_end_earlier():
    assert clocks([6, 2, 2, 2], multiprocessors=2) == pytest.approx(60)
    assert clocks([2, 2, 2, 6], multiprocessors=2) == pytest.approx(80)


# Alone a tile takes 16 clocks, two blocks take 10 a tile together. Blocks of 4 and 8: both run until each has done 4
# tiles, 8 tiles in 80 clocks; the rest of the second, 4 tiles, takes 64.
def test_blocks_share_a_multiprocessor():
    assert clocks([4, 8], clocks_per_tile=(16, 10)) == pytest.approx(80 + 64)


# Two multiprocessors ask for 2 x 30 bytes in 10 clocks and get 3 a clock: twice as long. One asks for what it gets.
def test_memory_sets_the_pace():
    run = run_waves([5, 10], 2, 1, [10], bytes_per_tile=30, bytes_per_clock=3)
    assert run.clocks == pytest.approx(2 * 50 + 50)
    assert run.copy_bound == pytest.approx(100 / 150)


def test_more_work_is_never_faster():
    before = 0
    for blocks in range(1, 40):
        now = clocks([3 + i % 5 for i in range(blocks)], multiprocessors=4, clocks_per_tile=(16, 10))
        assert now >= before
        before = now
