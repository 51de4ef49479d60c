"""IQ1_S: 256 values in 50 bytes, eight blocks of 32, value = d / 8 * (2 s + 1) * q, q = 8 g + 1 or 8 g - 1.

bytes 0-1    d, float16
bytes 2-33   low 8 bits of the place of 8 values g in the lattice (grids.py), each g -1, 0 or 1
bytes 34-49  16-bit words, little-endian, one a block: four times the upper 3 bits of places, the lowest first; s, 3
             bits; 1 in the highest bit where q = 8 g - 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import points
from kinetic.formats.superblocks import with_factors
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ1_S", 19, 256, 50, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 16, "superblock", 0, -1
TABLE, UNIT, SCALE_TYPE = (-9, -7, -1, 1, 7, 9), 0.125, "f16"

GRID = points("iq1_s")


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    at = 34 + (i >> 5 << 1)
    word = block[at] | block[at + 1] << 8
    high = word >> 3 * (i >> 3 & 3) & 7
    return 2 * GRID[block[2 + (i >> 3)] | high << 8, i & 7] + 3 - (word >> 15)


def factor(block: NDArray[np.uint8], b: int) -> int:
    return (block[35 + (b << 1)] >> 3 & 14) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    words = np.ascontiguousarray(blocks[..., 34:50]).view("<u2")
    high = words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    places = blocks[..., 2:34].reshape(high.shape) | high << 8
    shift = 1 - 2 * (words >> 15).astype(np.int8)
    q = 8 * GRID[places] + shift[..., None, None]
    d = f16_to_f32(blocks[..., 0:2]) * np.float32(UNIT)
    return with_factors(q, d, 2 * (words >> 12 & 7) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq1_s_q(GLOBAL const uchar *w, int i)
{
    GLOBAL const uchar *word = w + 34 + (i >> 5 << 1);
    int high = (word[0] | word[1] << 8) >> 3 * (i >> 3 & 3) & 7;
    return 8 * iq1_s_grid[w[2 + (i >> 3)] | high << 8][i & 7] + 1 - (word[1] >> 7 << 1);
}

DEVICE float iq1_s_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * 0.125f * (float)((w[35 + (i << 1)] >> 3 & 14) + 1);
}
"""
