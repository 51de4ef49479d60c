"""The generator against its published vectors, and the meaning of each of its words."""

import pytest

from kinetic import rng

ALL_ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "output"),
    [
        # The vectors for philox4x32, 10 rounds, that the authors publish with Random123.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_published_vectors(counter, key, output):
    assert rng.philox4x32(counter, key) == output


def test_words_are_laid_out_as_written():
    # The third published vector, spelt through our four numbers.
    bits = rng.random_bits(
        seed=0x299F31D0_A4093822, completion_index=0x03707344, position=0x85A308D3_243F6A88, purpose=0x13198A2E
    )
    assert bits == 0x94FDCCEB_D16CFE09


def test_every_number_changes_the_bits():
    base = (1, 2, 3, 4)
    high = 1 << 31
    changed = [tuple(n ^ bit if i == j else n for j, n in enumerate(base)) for i in range(4) for bit in (1, high)]
    changed += [(1 + (1 << 32), 2, 3, 4), (1, 2, 3 + (1 << 32), 4), (2, 1, 3, 4), (3, 2, 1, 4), (1, 4, 3, 2)]
    outputs = {rng.random_bits(*numbers) for numbers in [base, *changed]}
    assert len(outputs) == 1 + len(changed)


def test_bits_are_64_wide_and_balanced():
    ones = [0] * 64
    for position in range(2000):
        bits = rng.random_bits(7, 0, position, rng.DRAW)
        assert 0 <= bits < 1 << 64
        for i in range(64):
            ones[i] += bits >> i & 1
    # Five standard deviations of 2,000 fair coins.
    assert all(abs(count - 1000) < 112 for count in ones)
