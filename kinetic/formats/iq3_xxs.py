"""IQ3_XXS: 256 values in 98 bytes, eight blocks of 32, value = d / 4 * (2 s + 1) * q, q from grids.py.

bytes 0-1    d, float16
bytes 2-65   places in the lattice, one byte for each 4 values
bytes 66-97  32-bit words, little-endian, one a block: four times 7 sign bits (grids.even_signs), the lowest first, each
             for 8 values; above them s, 4 bits
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import even_signs, plus_minus, points
from kinetic.formats.superblocks import with_factors
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ3_XXS", 18, 256, 98, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 64, "superblock", 0, -1
TABLE = (-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62)
UNIT, SCALE_TYPE = 0.25, "f16"

GRID, EVEN, SIGNS = points("iq3_xxs"), even_signs(), plus_minus()


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    """Magnitudes are told apart by their upper bits, 0..7."""
    level = GRID[block[2 + (i >> 2)], i & 3] >> 3
    group = i >> 3 & 3
    signs = 66 + (i >> 5 << 2) + (7 * group >> 3)
    seven = ((block[signs] | block[signs + 1] << 8) >> (7 * group & 7)) & 127
    return 7 - level if EVEN[seven] >> (i & 7) & 1 else 8 + level


def factor(block: NDArray[np.uint8], b: int) -> int:
    return (block[69 + (b << 2)] >> 4 << 1) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    words = np.ascontiguousarray(blocks[..., 66:98]).view("<u4")
    sevens = words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    signs = SIGNS[EVEN[sevens]]
    q = GRID[blocks[..., 2:66]].reshape(signs.shape) * signs
    d = f16_to_f32(blocks[..., 0:2]) * np.float32(UNIT)
    return with_factors(q, d, 2 * (words >> 28) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq3_xxs_q(GLOBAL const uchar *w, int i)
{
    int group = i >> 3 & 3, j = i & 7, at = 66 + (i >> 5 << 2) + (7 * group >> 3);
    int seven = (w[at] | w[at + 1] << 8) >> (7 * group & 7) & 127;
    int magnitude = iq3_xxs_grid[w[2 + (i >> 2)]][i & 3];
    return even_signs[seven] >> j & 1 ? -magnitude : magnitude;
}

DEVICE float iq3_xxs_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * 0.25f * (float)((w[69 + (i << 2)] >> 4 << 1) + 1);
}
"""
