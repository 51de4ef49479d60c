"""Q1_0: 128 values in 18 bytes, value = d or -d.

bytes 0-1    d, float16
bytes 2-17   bit i, from the lowest of the first byte on, is 1 where value i is d
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q1_0", 41, 128, 18, True
BITS, ZERO, SCALES, D_AT, M_AT = 1, 1, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = (-1, 1), 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[2 + (i >> 3)] >> (i & 7)) & 1


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., 2:]), axis=-1, bitorder="little")
    q = 2 * bits.astype(np.int8) - np.int8(1)
    scale = np.repeat(f16_to_f32(blocks[..., :2]), 4, axis=-1)
    return Integers(q.reshape(len(raw), -1), scale.reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q1_0_q(GLOBAL const uchar *w, int i)
{
    return (w[2 + (i >> 3)] >> (i & 7) & 1) * 2 - 1;
}

DEVICE float q1_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
