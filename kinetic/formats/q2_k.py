"""Q2_K: 256 values in 84 bytes, sixteen parts of 16, value = d * s * q - dmin * m.

bytes 0-15    low nibble: s, high nibble: m, one byte for each 16 values
bytes 16-79   q, 2 bits (low_bits.py)
bytes 80-81   d, float16
bytes 82-83   dmin, float16
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.low_bits import spread
from kinetic.formats.superblocks import with_halves
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q2_K", 10, 256, 84, True
BITS, ZERO, SCALES, D_AT, M_AT = 2, 0, "halves", 80, 82
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[16 + (i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6)) & 3


def factor(block: NDArray[np.uint8], half: int) -> int:
    return block[half] & 15


def minimum(block: NDArray[np.uint8], half: int) -> int:
    return block[half] >> 4


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    d, dmin = f16_to_f32(blocks[..., 80:82]), f16_to_f32(blocks[..., 82:84])
    parts = with_halves(spread(blocks[..., 16:80]).astype(np.int8), d, blocks[..., :16] & 15)
    minimums = np.repeat(-dmin, 8, axis=-1).reshape(len(raw), -1)
    return parts._replace(minimum=minimums, sub_minimum=(blocks[..., :16] >> 4).astype(np.int8).reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q2_k_q(GLOBAL const uchar *w, int i)
{
    return w[16 + (i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6) & 3;
}

DEVICE float q2_k_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 80);
}

DEVICE int q2_k_sub(GLOBAL const uchar *w, int i)
{
    return w[i] & 15;
}

DEVICE float q2_k_minimum(GLOBAL const uchar *w, int i)
{
    return -f16_at(w + 82);
}

DEVICE int q2_k_sub_minimum(GLOBAL const uchar *w, int i)
{
    return w[i] >> 4;
}
"""
