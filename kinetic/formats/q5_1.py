"""Q5_1: 32 values in 24 bytes, value = d * q + m.

bytes 0-1    d, float16
bytes 2-3    m, float16
bytes 4-7    fifth bits, little-endian: bit i belongs to value i
bytes 8-23   low nibble: values 0..15, high nibble: values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.fifth_bits import join
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q5_1", 7, 32, 24, True
BITS, ZERO, SCALES, D_AT, M_AT = 5, 0, "block", 0, 2
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    low = (block[8 + (i & 15)] >> (i >> 4 << 2)) & 15
    return low | ((block[4 + (i >> 3)] >> (i & 7)) & 1) << 4


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    q = join(blocks[..., 4:8], blocks[..., 8:])
    d = f16_to_f32(blocks[..., 0:2])[..., 0]
    m = f16_to_f32(blocks[..., 2:4])[..., 0]
    return Integers(q.reshape(len(raw), -1), d, m)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q5_1_q(GLOBAL const uchar *w, int i)
{
    int low = w[8 + (i & 15)] >> (i >> 4 << 2) & 15;
    return low | (w[4 + (i >> 3)] >> (i & 7) & 1) << 4;
}

DEVICE float q5_1_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}

DEVICE float q5_1_minimum(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 2);
}
"""
