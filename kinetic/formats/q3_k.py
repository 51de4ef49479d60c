"""Q3_K: 256 values in 110 bytes, sixteen parts of 16, value = d * (s - 32) * (q - 4).

bytes 0-31     third bits of q: value 32 b + i has bit b of byte i
bytes 32-95    low 2 bits of q (low_bits.py)
bytes 96-103   low 4 bits of s: low nibbles are parts 0..7, high nibbles 8..15
bytes 104-107  upper 2 bits of s: part 4 j + i has bits 2j, 2j + 1 of byte i
bytes 108-109  d, float16
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.low_bits import spread
from kinetic.formats.superblocks import with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q3_K", 11, 256, 110, True
BITS, ZERO, SCALES, D_AT, M_AT = 3, 4, "halves", 108, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    low = (block[32 + (i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6)) & 3
    return low | ((block[i & 31] >> (i >> 5)) & 1) << 2


def factor(block: NDArray[np.uint8], half: int) -> int:
    """Bits of the int8 factor s - 32 of values 16 * half .. 16 * half + 15."""
    low = (block[96 + (half & 7)] >> (half >> 3 << 2)) & 15
    return ((low | ((block[104 + (half & 3)] >> (half >> 2 << 1)) & 3) << 4) - 32) & 255


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    third = (blocks[..., None, 0:32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    low = spread(blocks[..., 32:96]).reshape(third.shape)
    q = (low | third << 2).astype(np.int8) - np.int8(ZERO)
    upper = (blocks[..., None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    nibbles = np.concatenate([blocks[..., 96:104] & 15, blocks[..., 96:104] >> 4], axis=-1)
    s = (nibbles | upper.reshape(nibbles.shape) << 4).astype(np.int8) - np.int8(32)
    return with_halves(q, f16_to_f32(blocks[..., 108:110]), s)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q3_k_q(GLOBAL const uchar *w, int i)
{
    int low = w[32 + (i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6) & 3;
    return (low | (w[i & 31] >> (i >> 5) & 1) << 2) - 4;
}

DEVICE float q3_k_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 108);
}

DEVICE int q3_k_sub(GLOBAL const uchar *w, int i)
{
    return (w[96 + (i & 7)] >> (i >> 3 << 2) & 15 | (w[104 + (i & 3)] >> (i >> 2 << 1) & 3) << 4) - 32;
}
"""
