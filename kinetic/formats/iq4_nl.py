"""IQ4_NL: 32 values in 18 bytes, value = d * q, q one of 16 levels (four_bits.py).

bytes 0-1    d, float16
bytes 2-17   places of q: low nibble values 0..15, high nibble values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.four_bits import LEVELS, look_up
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ4_NL", 20, 32, 18, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 128, "block", 0, -1
TABLE, UNIT, SCALE_TYPE = LEVELS, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[2 + (i & 15)] >> (i >> 4 << 2)) & 15


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    return Integers(look_up(TABLE, blocks[..., 2:], 16), f16_to_f32(blocks[..., :2])[..., 0])


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq4_nl_q(GLOBAL const uchar *w, int i)
{
    return four_bit_levels[w[2 + (i & 15)] >> (i >> 4 << 2) & 15];
}

DEVICE float iq4_nl_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w);
}
"""
