"""Q4_1: 32 values in 20 bytes, value = d * q + m.

bytes 0-1    d, float16
bytes 2-3    m, float16
bytes 4-19   low nibble: values 0..15, high nibble: values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q4_1", 3, 32, 20, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 0, "block", 0, 2
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[4 + (i & 15)] >> (i >> 4 << 2)) & 15


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    q = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1).astype(np.int8)
    d = f16_to_f32(blocks[..., 0:2])[..., 0]
    m = f16_to_f32(blocks[..., 2:4])[..., 0]
    return Integers(q.reshape(len(raw), -1), d, m)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q4_1_q(GLOBAL const uchar *w, int i)
{
    return w[4 + (i & 15)] >> (i >> 4 << 2) & 15;
}

DEVICE float q4_1_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}

DEVICE float q4_1_minimum(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 2);
}
"""
