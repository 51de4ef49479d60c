"""Q6_K: 256 values in 210 bytes, sixteen halves of 16, value = d * s * (q - 32).

    bytes 0-127    low nibbles
    bytes 128-191  upper two bits
    bytes 192-207  s, int8, one for each 16 values
    bytes 208-209  d, float16

Values 128 h + 32 j + i (h = 0..1, j = 0..3, i = 0..31) take the low (j < 2) or
high nibble of low byte 64 h + 32 (j mod 2) + i, and bits 2j, 2j+1 of upper byte 32 h + i.
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.superblocks import with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q6_K", 14, 256, 210, True
BITS, ZERO, SCALES, D_AT, M_AT = 6, 32, "halves", 208, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    h, j, k = i >> 7, (i >> 5) & 3, i & 31
    low = (block[(h << 6) + ((j & 1) << 5) + k] >> (j >> 1 << 2)) & 15
    return low | ((block[128 + (h << 5) + k] >> (2 * j)) & 3) << 4


def factor(block: NDArray[np.uint8], half: int) -> int:
    """Bits of the int8 factor of values 16 * half .. 16 * half + 15."""
    return block[192 + half]


def integers(raw: NDArray[np.uint8]) -> Integers:
    n = len(raw)
    blocks = raw.reshape(n, -1, BYTES)
    low = blocks[..., 0:128].reshape(n, -1, 2, 2, 32)
    nibbles = np.stack([low & 15, low >> 4], axis=3).reshape(n, -1, 2, 4, 32)
    upper = blocks[..., 128:192].reshape(n, -1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    q = (nibbles | ((upper & 3) << 4)).astype(np.int8) - np.int8(32)
    s = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return with_halves(q, f16_to_f32(blocks[..., 208:210]), s)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q6_k_q(GLOBAL const uchar *w, int i)
{
    int h = i >> 7, j = i >> 5 & 3, k = i & 31;
    int low = w[(h << 6) + ((j & 1) << 5) + k] >> (j >> 1 << 2) & 15;
    return (low | (w[128 + (h << 5) + k] >> 2 * j & 3) << 4) - 32;
}

DEVICE float q6_k_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 208);
}

DEVICE int q6_k_sub(GLOBAL const uchar *w, int i)
{
    return (schar)w[192 + i];
}
"""
