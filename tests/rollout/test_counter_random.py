"""Philox against its published answers; numbers that depend only on where they are used, and look uniform."""

import numpy as np
import pytest
import torch

from regrow.rollout.sampling import DRAFT_STREAM, philox, uniform


# Random123, kat_vectors, lines "philox4x32 10": counter, key, result.
@pytest.mark.parametrize(
    ("counter", "key", "result"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter, key, result):
    counter, key, result = ([int(word, 16) for word in words.split()] for words in (counter, key, result))
    rows = np.array([counter, [1, 2, 3, 4], counter], dtype=np.uint64)
    got = philox(rows, key)
    assert got[0].tolist() == got[2].tolist() == result
    assert got[1].tolist() != result


def test_numbers_of_the_known_answer():
    first, second = uniform(0, 0, 0, draws=2).tolist()
    assert first == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53
    assert second == ((0xBC57AC4C >> 5) * 2**26 + (0x9B00DBD8 >> 6)) / 2**53


def test_a_number_depends_on_its_place_alone():
    sequences, positions = torch.tensor([4, 0, 9]), torch.tensor([[7], [2**32 - 1]])
    together = uniform(2**64 - 1, sequences, positions, draws=5)
    assert together.shape == (2, 3, 5) and together.dtype == torch.float64
    for row, position in enumerate(positions.flatten().tolist()):
        for column, sequence in enumerate(sequences.tolist()):
            for draws in range(6):
                alone = uniform(2**64 - 1, sequence, position, draws)
                assert alone.equal(together[row, column, :draws])


def test_each_coordinate_counts():
    places = [(0, 0, 0, 0), (1, 0, 0, 0), (2**32, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, DRAFT_STREAM)]
    numbers = torch.cat([uniform(seed, sequence, position, 4, stream) for seed, sequence, position, stream in places])
    assert len(numbers.unique()) == 24


def test_uniform_and_independent():
    numbers = uniform(1, torch.arange(100), torch.arange(100)[:, None], draws=4)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    # Pairs of draws, of neighbouring sequences and of neighbouring positions, over 8 x 8 cells: chi-square has 63
    # degrees of freedom, so 63 on average, and above 110 once in 5,000.
    for first, second in (
        (numbers[..., 0], numbers[..., 1]),
        (numbers[..., 1], numbers[..., 2]),
        (numbers[:, ::2], numbers[:, 1::2]),
        (numbers[::2], numbers[1::2]),
    ):
        cells = ((first * 8).long() * 8 + (second * 8).long()).flatten().bincount(minlength=64).double()
        expected = cells.sum() / 64
        assert float(((cells - expected) ** 2 / expected).sum()) < 110


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((-1, 0, 0, 1), r"seed is -1, must be from 0 to 2\^64 - 1: pass it modulo"),
        ((2**64, 0, 0, 1), "seed is 18446744073709551616"),
        ((0, torch.tensor([0, -2]), 0, 1), r"sequence is -2, must be from 0 to 2\^32 - 1"),
        ((0, 0, 2**32, 1), "position is 4294967296"),
        ((0, 0, 0, -1), "draws is -1, must not be negative"),
        ((0, 0, 0, 1, -1), "stream is -1"),
    ],
)
def test_refused(place, message):
    with pytest.raises(ValueError, match=message):
        uniform(*place)
