"""TQ2_0: 256 values in 66 bytes, value = d * (q - 1).

bytes 0-63   q, 2 bits (low_bits.py); ternary weights use 0..2
bytes 64-65  d, float16
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.low_bits import spread
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "TQ2_0", 35, 256, 66, True
BITS, ZERO, SCALES, D_AT, M_AT = 2, 1, "block", 64, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[(i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6)) & 3


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    q = spread(blocks[..., 0:64]).astype(np.int8) - np.int8(ZERO)
    scale = np.repeat(f16_to_f32(blocks[..., 64:66]), 8, axis=-1)
    return Integers(q.reshape(len(raw), -1), scale.reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int tq2_0_q(GLOBAL const uchar *w, int i)
{
    return (w[(i >> 7 << 5) + (i & 31)] >> (i >> 4 & 6) & 3) - 1;
}

DEVICE float tq2_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 64);
}
"""
