"""MXFP4: 32 values in 17 bytes, value = 2^(e - 128) * q, q twice an E2M1 value (four_bits.py).

byte 0       e
bytes 1-16   places of q: low nibble values 0..15, high nibble values 16..31

e = 255 is NaN in the OCP specification. llama.cpp reads it as 2^127 but calls a file with it invalid; it is refused.
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, bf16_to_f32
from kinetic.formats import Integers
from kinetic.formats.four_bits import FP4, look_up
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "MXFP4", 39, 32, 17, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 16, "block", -1, -1
TABLE, UNIT, SCALE_TYPE = FP4, 1.0, "bf16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[1 + (i & 15)] >> (i >> 4 << 2)) & 15


def scale_bits(block: NDArray[np.uint8], i: int) -> int:
    """2^(e - 128), for e = 0 and 1 a subnormal."""
    e = block[0]
    return (e - 1) << 7 if e > 1 else 32 << e


def unusable(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return blocks[:, 0] == 255


POWERS = bf16_to_f32(np.array([scale_bits(np.array([e]), 0) for e in range(256)], "<u2").view(np.uint8))
"""2^(e - 128) by e."""


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    return Integers(look_up(TABLE, blocks[..., 1:], 16), POWERS[blocks[..., 0]])


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int mxfp4_q(GLOBAL const uchar *w, int i)
{
    return fp4_values[w[1 + (i & 15)] >> (i >> 4 << 2) & 15];
}

DEVICE float mxfp4_scale(GLOBAL const uchar *w, int i)
{
    return FLOAT_OF_BITS(w[0] > 1 ? (uint)(w[0] - 1) << 23 : 0x200000u << w[0]);
}
"""
