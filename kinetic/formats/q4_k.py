"""Q4_K: 256 values in 144 bytes, eight blocks of 32, value = d * s * q - dmin * m.

bytes 0-1     d, float16
bytes 2-3     dmin, float16
bytes 4-15    6-bit scales s and minimums m (k_scales.py)
bytes 16-143  four runs of 32 bytes; run p: low nibbles are block 2p, high nibbles block 2p + 1
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.formats import Integers
from kinetic.formats.k_scales import minimum_factor, scale_factor, with_scales
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q4_K", 12, 256, 144, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 0, "superblock", 0, 2
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"
factor, minimum = scale_factor, minimum_factor


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[16 + (i >> 6 << 5) + (i & 31)] >> (i >> 5 << 2 & 4)) & 15


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    runs = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    q = np.concatenate([runs & 15, runs >> 4], axis=-2).astype(np.int8)
    return with_scales(q.reshape(*blocks.shape[:2], BLOCK), blocks)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q4_k_q(GLOBAL const uchar *w, int i)
{
    return w[16 + (i >> 6 << 5) + (i & 31)] >> (i >> 5 << 2 & 4) & 15;
}

DEVICE float q4_k_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w) * (float)k_scale_factor(w, i);
}

DEVICE float q4_k_minimum(GLOBAL const uchar *w, int i)
{
    return -(f16_at(w + 2) * (float)k_minimum_factor(w, i));
}
"""
