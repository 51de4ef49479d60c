"""IQ2_S: 256 values in 82 bytes, sixteen parts of 16, value = d / 8 * (2 s + 1) * q, q in +-8, 25, 43 (grids.py).

bytes 0-1    d, float16
bytes 2-33   low 8 bits of the place in the lattice, one byte for each 8 values
bytes 34-65  sign bits, one byte for each 8 values
bytes 66-73  upper 2 bits of the place: those of 8 values 4 i + j are bits 2j, 2j + 1 of byte i
bytes 74-81  s, 4 bits: low nibble part 2 i, high nibble part 2 i + 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import plus_minus, points
from kinetic.formats.superblocks import two_nibbles, with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ2_S", 22, 256, 82, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 64, "halves", 0, -1
TABLE, UNIT, SCALE_TYPE = (-43, -25, -8, 8, 25, 43), 0.125, "f16"

GRID, SIGNS = points("iq2_s"), plus_minus()


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    """Magnitudes 8, 25 and 43 are told apart by their upper bits: 0, 1, 2."""
    high = block[66 + (i >> 5)] >> (i >> 2 & 6) & 3
    level = GRID[block[2 + (i >> 3)] | high << 8, i & 7] >> 4
    return 2 - level if block[34 + (i >> 3)] >> (i & 7) & 1 else 3 + level


def factor(block: NDArray[np.uint8], half: int) -> int:
    return ((block[74 + (half >> 1)] >> ((half & 1) << 2) & 15) << 1) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    high = blocks[..., 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    places = blocks[..., 2:34] | high.reshape(*blocks.shape[:2], 32).astype(np.uint16) << 8
    q = GRID[places] * SIGNS[blocks[..., 34:66]]
    d = f16_to_f32(blocks[..., 0:2]) * np.float32(UNIT)
    return with_halves(q, d, 2 * two_nibbles(blocks[..., 74:82]) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq2_s_q(GLOBAL const uchar *w, int i)
{
    int high = w[66 + (i >> 5)] >> (i >> 2 & 6) & 3;
    int magnitude = iq2_s_grid[w[2 + (i >> 3)] | high << 8][i & 7];
    return w[34 + (i >> 3)] >> (i & 7) & 1 ? -magnitude : magnitude;
}

DEVICE float iq2_s_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * 0.125f;
}

DEVICE int iq2_s_sub(GLOBAL const uchar *w, int i)
{
    return ((w[74 + (i >> 1)] >> ((i & 1) << 2) & 15) << 1) + 1;
}
"""
