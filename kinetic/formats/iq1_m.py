"""IQ1_M: 256 values in 56 bytes, sixteen parts of 16, value = d / 8 * (2 s + 1) * q, q = 8 g + 1 or 8 g - 1.

bytes 0-31   low 8 bits of the place of 8 values g in the lattice of IQ1_S (grids.py), each g -1, 0 or 1
bytes 32-47  a nibble for each 8 values, the low one first: upper 3 bits of the place, and 8 where q = 8 g - 1
bytes 48-55  16-bit words, little-endian: four times s, 3 bits, the lowest first, and above them 4 bits of d, float16,
             of which the first word has the lowest
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import points
from kinetic.formats.superblocks import two_nibbles, with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ1_M", 29, 256, 56, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 16, "halves", -1, -1
TABLE, UNIT, SCALE_TYPE = (-9, -7, -1, 1, 7, 9), 0.125, "f16"

GRID = points("iq1_s")


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    nibble = block[32 + (i >> 4)] >> (i >> 1 & 4) & 15
    return 2 * GRID[block[i >> 3] | (nibble & 7) << 8, i & 7] + 3 - (nibble >> 3)


def factor(block: NDArray[np.uint8], half: int) -> int:
    at = 48 + (half >> 2 << 1)
    return ((block[at] | block[at + 1] << 8) >> 3 * (half & 3) & 7) * 2 + 1


def scale_bits(block: NDArray[np.uint8], i: int) -> int:
    """The one scale d; ``i`` is 0."""
    return block[49] >> 4 | (block[51] & 240) | (block[53] & 240) << 4 | (block[55] & 240) << 8


def unusable(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (blocks[:, 55] & 112 == 112) & (blocks[:, 53] & 192 == 192)


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    nibbles = two_nibbles(blocks[..., 32:48])
    places = blocks[..., 0:32] | (nibbles & 7).astype(np.uint16) << 8
    shift = 1 - 2 * (nibbles >> 3).astype(np.int8)
    q = 8 * GRID[places] + shift[..., None]
    words = np.ascontiguousarray(blocks[..., 48:56]).view("<u2")
    bits = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
    d_bits = np.bitwise_or.reduce(bits, axis=-1, keepdims=True)  # exact: integers
    d = f16_to_f32(d_bits.astype("<u2").view(np.uint8))
    s = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(*blocks.shape[:2], 16)
    return with_halves(q, d * np.float32(UNIT), 2 * s + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq1_m_q(GLOBAL const uchar *w, int i)
{
    int nibble = w[32 + (i >> 4)] >> (i >> 1 & 4) & 15;
    return 8 * iq1_s_grid[w[i >> 3] | (nibble & 7) << 8][i & 7] + 1 - (nibble >> 3 << 1);
}

DEVICE float iq1_m_scale(GLOBAL const uchar *w, int i)
{
    uint d = w[49] >> 4 | (w[51] & 240) | (w[53] & 240) << 4 | (w[55] & 240) << 8;
    return f16_to_f32(d) * 0.125f;
}

DEVICE int iq1_m_sub(GLOBAL const uchar *w, int i)
{
    GLOBAL const uchar *word = w + 48 + (i >> 2 << 1);
    return ((word[0] | word[1] << 8) >> 3 * (i & 3) & 7) * 2 + 1;
}
"""
