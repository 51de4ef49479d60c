"""Q2_0: 64 values in 18 bytes, value = d * (q - 1).

bytes 0-1    d, float16
bytes 2-17   q, 2 bits: value 4 i + j is bits 2j, 2j + 1 of byte 2 + i
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q2_0", 42, 64, 18, True
BITS, ZERO, SCALES, D_AT, M_AT = 2, 1, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[2 + (i >> 2)] >> ((i & 3) << 1)) & 3


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    codes = blocks[..., 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    q = codes.astype(np.int8) - np.int8(ZERO)
    scale = np.repeat(f16_to_f32(blocks[..., :2]), 2, axis=-1)
    return Integers(q.reshape(len(raw), -1), scale.reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q2_0_q(GLOBAL const uchar *w, int i)
{
    return (w[2 + (i >> 2)] >> ((i & 3) << 1) & 3) - 1;
}

DEVICE float q2_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
