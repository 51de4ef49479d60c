"""Q4_0: 32 values in 18 bytes, value = d * (q - 8).

bytes 0-1    d, float16
bytes 2-17   low nibble: values 0..15, high nibble: values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "Q4_0", 2, 32, 18, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 8, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[2 + (i & 15)] >> (i >> 4 << 2)) & 15


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    nibbles = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    q = nibbles.astype(np.int8) - np.int8(8)
    return Integers(q.reshape(len(raw), -1), f16_to_f32(blocks[..., :2])[..., 0])


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int q4_0_q(GLOBAL const uchar *w, int i)
{
    return (w[2 + (i & 15)] >> (i >> 4 << 2) & 15) - 8;
}

DEVICE float q4_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
