"""IQ2_XXS: 256 values in 66 bytes, eight blocks of 32, value = d / 8 * (2 s + 1) * q, q in +-8, 25, 43 (grids.py).

bytes 0-1    d, float16
bytes 2-65   8 bytes a block: four are places in the lattice, each for 8 values; then a 32-bit word, little-endian, of
             four times 7 sign bits (grids.even_signs), the lowest first, and above them s, 4 bits
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.grids import even_signs, plus_minus, points
from kinetic.formats.superblocks import with_factors
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ2_XXS", 16, 256, 66, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 64, "superblock", 0, -1
TABLE, UNIT, SCALE_TYPE = (-43, -25, -8, 8, 25, 43), 0.125, "f16"

GRID, EVEN, SIGNS = points("iq2_xxs"), even_signs(), plus_minus()


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    """Magnitudes 8, 25 and 43 are told apart by their upper bits: 0, 1, 2."""
    at, group = 2 + (i >> 5 << 3), i >> 3 & 3
    level = GRID[block[at + group], i & 7] >> 4
    signs = at + 4 + (7 * group >> 3)
    seven = ((block[signs] | block[signs + 1] << 8) >> (7 * group & 7)) & 127
    return 2 - level if EVEN[seven] >> (i & 7) & 1 else 3 + level


def factor(block: NDArray[np.uint8], b: int) -> int:
    return (block[9 + (b << 3)] >> 4 << 1) + 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    parts = np.ascontiguousarray(blocks[..., 2:]).reshape(*blocks.shape[:2], 8, 8)
    words = parts[..., 4:8].view("<u4")
    sevens = words >> np.array([0, 7, 14, 21], np.uint32) & 127
    q = GRID[parts[..., 0:4]] * SIGNS[EVEN[sevens]]
    d = f16_to_f32(blocks[..., 0:2]) * np.float32(UNIT)
    return with_factors(q, d, 2 * (words[..., 0] >> 28) + 1)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq2_xxs_q(GLOBAL const uchar *w, int i)
{
    GLOBAL const uchar *part = w + 2 + (i >> 5 << 3);
    int group = i >> 3 & 3, j = i & 7, at = 4 + (7 * group >> 3);
    int seven = (part[at] | part[at + 1] << 8) >> (7 * group & 7) & 127;
    int magnitude = iq2_xxs_grid[part[group]][j];
    return even_signs[seven] >> j & 1 ? -magnitude : magnitude;
}

DEVICE float iq2_xxs_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * 0.125f * (float)((w[9 + (i << 3)] >> 4 << 1) + 1);
}
"""
