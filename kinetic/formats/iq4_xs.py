"""IQ4_XS: 256 values in 136 bytes, eight blocks of 32, value = d * (s - 32) * q, q one of 16 levels (four_bits.py).

bytes 0-1     d, float16
bytes 2-3     upper 2 bits of s: block 4 j + i has bits 2i, 2i + 1 of byte j
bytes 4-7     low 4 bits of s: block 2 j + i has nibble i of byte j
bytes 8-135   places of q, 16 bytes a block: low nibble values 0..15, high nibble values 16..31
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.four_bits import LEVELS, look_up
from kinetic.formats.superblocks import two_nibbles, with_factors
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "IQ4_XS", 23, 256, 136, True
BITS, ZERO, SCALES, D_AT, M_AT = 4, 128, "superblock", 0, -1
TABLE, UNIT, SCALE_TYPE = LEVELS, 1.0, "f16"


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    return (block[8 + (i >> 5 << 4) + (i & 15)] >> (i >> 2 & 4)) & 15


def factor(block: NDArray[np.uint8], b: int) -> int:
    """Bits of the int8 factor s - 32."""
    low = (block[4 + (b >> 1)] >> ((b & 1) << 2)) & 15
    return ((low | ((block[2 + (b >> 2)] >> ((b & 3) << 1)) & 3) << 4) - 32) & 255


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    low = two_nibbles(blocks[..., 4:8])
    high = blocks[..., 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    s = (low | high.reshape(low.shape) << 4).astype(np.int8) - np.int8(32)
    q = look_up(TABLE, blocks[..., 8:], 16)
    return with_factors(q, f16_to_f32(blocks[..., 0:2]), s)


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int iq4_xs_q(GLOBAL const uchar *w, int i)
{
    return four_bit_levels[w[8 + (i >> 5 << 4) + (i & 15)] >> (i >> 2 & 4) & 15];
}

DEVICE float iq4_xs_scale(GLOBAL const uchar *w, int i)
{
    int s = w[4 + (i >> 1)] >> ((i & 1) << 2) & 15 | (w[2 + (i >> 2)] >> ((i & 3) << 1) & 3) << 4;
    return f16_at(w) * (float)(s - 32);
}
"""
