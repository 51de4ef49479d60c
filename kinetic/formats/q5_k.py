"""Q5_K: 256 values in 176 bytes, eight blocks of 32, value = d * s * q - dmin * m.

bytes 0-1     d, float16
bytes 2-3     dmin, float16
bytes 4-15    6-bit scales s and minimums m (k_scales.py)
bytes 16-47   fifth bits: bit b of byte i belongs to value i of block b
bytes 48-175  four runs of 32 bytes; run p: low nibbles are block 2p, high nibbles block 2p + 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.formats import Integers
from kinetic.formats.k_scales import minimum_factor, scale_factor, with_scales
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q5_K", 13, 256, 176, True
BITS, ZERO, SCALES, D_AT, M_AT = 5, 0, "superblock", 0, 2
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"
factor, minimum = scale_factor, minimum_factor


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    low = (block[48 + (i >> 6 << 5) + (i & 31)] >> (i >> 5 << 2 & 4)) & 15
    return low | ((block[16 + (i & 31)] >> (i >> 5)) & 1) << 4


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    runs = blocks[..., 48:].reshape(*blocks.shape[:2], 4, 1, 32)
    low = np.concatenate([runs & 15, runs >> 4], axis=-2).reshape(*blocks.shape[:2], 8, 32)
    high = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    q = (low | (high << 4)).astype(np.int8)
    return with_scales(q.reshape(*blocks.shape[:2], BLOCK), blocks)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q5_k_q(GLOBAL const uchar *w, int i)
{
    int low = w[48 + (i >> 6 << 5) + (i & 31)] >> (i >> 5 << 2 & 4) & 15;
    return low | (w[16 + (i & 31)] >> (i >> 5) & 1) << 4;
}

DEVICE float q5_k_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * (float)k_scale_factor(w, i);
}

DEVICE float q5_k_minimum(GLOBAL const uchar *w, int i)
{
    return -(f16_at(w + 2) * (float)k_minimum_factor(w, i));
}
"""
