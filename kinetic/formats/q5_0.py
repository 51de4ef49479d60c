"""Q5_0: 32 values in 22 bytes, value = d * (q - 16).

bytes 0-1    d, float16
bytes 2-5    fifth bits, little-endian: bit i belongs to value i
bytes 6-21   low nibble: values 0..15, high nibble: values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.fifth_bits import join
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q5_0", 6, 32, 22, True
BITS, ZERO, SCALES, D_AT, M_AT = 5, 16, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    low = (block[6 + (i & 15)] >> (i >> 4 << 2)) & 15
    return low | ((block[2 + (i >> 3)] >> (i & 7)) & 1) << 4


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    q = join(blocks[..., 2:6], blocks[..., 6:]) - np.int8(ZERO)
    return Integers(q.reshape(len(raw), -1), f16_to_f32(blocks[..., :2])[..., 0])


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q5_0_q(GLOBAL const uchar *w, int i)
{
    int low = w[6 + (i & 15)] >> (i >> 4 << 2) & 15;
    return (low | (w[2 + (i >> 3)] >> (i & 7) & 1) << 4) - 16;
}

DEVICE float q5_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
