"""IQ2_XS: 256 values in 74 bytes, sixteen parts of 16, value = d / 8 * (2 s + 1) * q, q in +-8, 25, 43 (grids.py).

bytes 0-1    d, float16
bytes 2-65   16-bit words, little-endian, one for each 8 values: 9 bits are the place in the lattice, the upper 7 sign
             bits (grids.even_signs)
bytes 66-73  s, 4 bits: low nibble part 2 i, high nibble part 2 i + 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import even_signs, plus_minus, points
from kinetic.formats.superblocks import two_nibbles, with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ2_XS", 17, 256, 74, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 64, "halves", 0, -1
TABLE, UNIT, SCALE_TYPE = (-43, -25, -8, 8, 25, 43), 0.125, "f16"

GRID, EVEN, SIGNS = points("iq2_xs"), even_signs(), plus_minus()


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    """Magnitudes 8, 25 and 43 are told apart by their upper bits: 0, 1, 2."""
    at = 2 + (i >> 3 << 1)
    level = GRID[block[at] | (block[at + 1] & 1) << 8, i & 7] >> 4
    return 2 - level if EVEN[block[at + 1] >> 1] >> (i & 7) & 1 else 3 + level


def factor(block: NDArray[np.uint8], half: int) -> int:
    return ((block[66 + (half >> 1)] >> ((half & 1) << 2) & 15) << 1) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    words = np.ascontiguousarray(blocks[..., 2:66]).view("<u2")
    q = GRID[words & 511] * SIGNS[EVEN[words >> 9]]
    d = f16_to_f32(blocks[..., 0:2]) * np.float32(UNIT)
    return with_halves(q, d, 2 * two_nibbles(blocks[..., 66:74]) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq2_xs_q(GLOBAL const uchar *w, int i)
{
    GLOBAL const uchar *word = w + 2 + (i >> 3 << 1);
    int magnitude = iq2_xs_grid[word[0] | (word[1] & 1) << 8][i & 7];
    return even_signs[word[1] >> 1] >> (i & 7) & 1 ? -magnitude : magnitude;
}

DEVICE float iq2_xs_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * 0.125f;
}

DEVICE int iq2_xs_sub(GLOBAL const uchar *w, int i)
{
    return ((w[66 + (i >> 1)] >> ((i & 1) << 2) & 15) << 1) + 1;
}
"""
