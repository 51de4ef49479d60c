"""IQ3_S: 256 values in 110 bytes, eight blocks of 32, value = d * (2 s + 1) * q, q in +-1, 3 ... 15 (grids.py).

bytes 0-1      d, float16
bytes 2-65     low 8 bits of the place in the lattice, one byte for each 4 values
bytes 66-73    ninth bits of the place, one byte a block, the lowest bit first
bytes 74-105   sign bits, one byte for each 8 values
bytes 106-109  s, 4 bits: low nibble block 2 i, high nibble block 2 i + 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import plus_minus, points
from kinetic.formats.superblocks import two_nibbles, with_factors
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ3_S", 21, 256, 110, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 16, "superblock", 0, -1
TABLE = (-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15)
UNIT, SCALE_TYPE = 1.0, "f16"

GRID, SIGNS = points("iq3_s"), plus_minus()


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    ninth = block[66 + (i >> 5)] >> (i >> 2 & 7) & 1
    level = GRID[block[2 + (i >> 2)] | ninth << 8, i & 3] >> 1
    return 7 - level if block[74 + (i >> 3)] >> (i & 7) & 1 else 8 + level


def factor(block: NDArray[np.uint8], b: int) -> int:
    return ((block[106 + (b >> 1)] >> ((b & 1) << 2) & 15) << 1) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    ninth = np.unpackbits(np.ascontiguousarray(blocks[..., 66:74]), axis=-1, bitorder="little")
    signs = SIGNS[blocks[..., 74:106]]
    q = GRID[blocks[..., 2:66] | ninth.astype(np.uint16) << 8].reshape(signs.shape) * signs
    return with_factors(q, f16_to_f32(blocks[..., 0:2]), 2 * two_nibbles(blocks[..., 106:110]) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq3_s_q(GLOBAL const uchar *w, int i)
{
    int ninth = w[66 + (i >> 5)] >> (i >> 2 & 7) & 1;
    int magnitude = iq3_s_grid[w[2 + (i >> 2)] | ninth << 8][i & 3];
    return w[74 + (i >> 3)] >> (i & 7) & 1 ? -magnitude : magnitude;
}

DEVICE float iq3_s_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * (float)(((w[106 + (i >> 1)] >> ((i & 1) << 2) & 15) << 1) + 1);
}
"""
