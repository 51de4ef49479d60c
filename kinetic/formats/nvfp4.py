"""NVFP4: 64 values in 36 bytes, four parts of 16, value = d / 2 * q, q twice an E2M1 value (four_bits.py).

bytes 0-3    d of each part, unsigned E4M3: 4 bits of exponent (bias 7) above 3 of mantissa
bytes 4-35   places of q, 8 bytes a part: low nibble values 0..7, high nibble values 8..15

As in llama.cpp 127, the code of NaN, is 0, bit 7 means nothing else, and no byte is refused. d / 2 is a float16.
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.four_bits import FP4, look_up
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "NVFP4", 40, 64, 36, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 16, "pairs", -1, -1
TABLE, UNIT, SCALE_TYPE = FP4, 1.0, "f16"

SMALL = (0x0000, 0x1400, 0x1800, 0x1A00, 0x1C00, 0x1D00, 0x1E00, 0x1F00)
"""Multiples of 2^-10 as float16: the subnormals of E4M3, halved."""


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[4 + (i >> 4 << 3) + (i & 7)] >> (i >> 1 & 4)) & 15


def scale_bits(block: NDArray[np.uint8], i: int) -> int:
    """The exponent's bias is 15 instead of 7, and one less halves: its field grows by 7."""
    d = block[i] & 127
    if block[i] == 127:
        return 0
    return SMALL[d] if d < 8 else (d + 56) << 7


def unusable(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.zeros(len(blocks), np.bool_)


HALVES = f16_to_f32(np.array([scale_bits(np.array([d]), 0) for d in range(256)], "<u2").view(np.uint8))
"""d / 2 by the byte that stands for it."""


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    return Integers(look_up(TABLE, blocks[..., 4:], 8), HALVES[blocks[..., 0:4]].reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int nvfp4_q(GLOBAL const uchar *w, int i)
{
    return fp4_values[w[4 + (i >> 4 << 3) + (i & 7)] >> (i >> 1 & 4) & 15];
}

DEVICE float nvfp4_scale(GLOBAL const uchar *w, int i)
{
    int d = w[i] & 127;
    float number = d < 8 ? (float)d : (float)(8 + (d & 7)) * power_of_two((d >> 3) - 1);
    return w[i] == 127 ? 0.0f : number * 0x1p-10f;
}
"""
