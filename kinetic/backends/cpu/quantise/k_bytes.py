"""How levels and integer factors of the K formats lie in their bytes. ``q`` are the levels, in the values' order."""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.memory import small


@small
def write_two_bits(q, y, at):
    """The two low bits, four a byte: those of values 32 apart."""
    for half in range(2):
        for j in range(32):
            a = 128 * half + j
            low, high = (q[a] & 3) | (q[a + 32] & 3) << 2, (q[a + 64] & 3) | (q[a + 96] & 3) << 2
            y[at + 32 * half + j] = np.uint8(low | high << 4)


@small
def write_four_bits(q, y, at):
    """The four low bits, two a byte: those of values 32 apart."""
    for part in range(4):
        for j in range(32):
            low, high = q[64 * part + j], q[64 * part + 32 + j]
            y[at + 32 * part + j] = np.uint8((low & 15) | (high & 15) << 4)


@small
def write_one_bit(q, y, at, shift):
    """The bit at ``shift`` and all above, eight a byte: those of values 32 apart."""
    for j in range(32):
        bits = 0
        for part in range(8):
            bits |= (q[32 * part + j] >> shift) << part
        y[at + j] = np.uint8(bits)


@small
def write_nibbles(scales, minima, y):
    """Sixteen pairs of 4 bits. A factor that the search made negative spills over, as in ggml: what
    the bytes hold is put back."""
    for i in range(16):
        pair = (scales[i] | minima[i] << 4) & 255
        y[i] = np.uint8(pair)
        scales[i], minima[i] = np.int32(pair & 15), np.int32(pair >> 4)


@small
def write_six_bits(scales, minima, y, at):
    """Eight pairs of 6 bits in 12 bytes: four whole pairs, whose upper bits hold those of the other four.

    What the bytes hold is put back, as in ``write_nibbles``.
    """
    for i in range(4):
        scale, minimum = scales[i + 4], minima[i + 4]
        a, b = (scales[i] | (scale >> 4) << 6) & 255, (minima[i] | (minimum >> 4) << 6) & 255
        y[at + i], y[at + 4 + i] = np.uint8(a), np.uint8(b)
        y[at + 8 + i] = np.uint8((scale & 15) | (minimum & 15) << 4)
        scales[i], minima[i] = np.int32(a & 63), np.int32(b & 63)
        scales[i + 4] = np.int32((scale & 15) | (a >> 6) << 4)
        minima[i + 4] = np.int32((minimum & 15) | (b >> 6) << 4)
