"""Q8_0: 32 values in 34 bytes, value = d * q.

bytes 0-1    d, float16
bytes 2-33   q, int8
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q8_0", 8, 32, 34, True
BITS, ZERO, SCALES, D_AT, M_AT = 8, 128, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return block[2 + i] ^ 128


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    q = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(raw), -1)
    return Integers(q, f16_to_f32(blocks[..., :2])[..., 0])


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q8_0_q(GLOBAL const uchar *w, int i)
{
    return (schar)w[2 + i];
}

DEVICE float q8_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
