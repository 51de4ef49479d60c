"""TQ1_0: 256 values in 54 bytes, value = d * (q - 1), q of base 3, five of them a byte.

bytes 0-31   values 32 n + i: digit n of byte i
bytes 32-47  values 160 + 16 n + i: digit n of byte 32 + i
bytes 48-51  values 240 + 4 n + i: digit n of byte 48 + i, n = 0..3
bytes 52-53  d, float16

Digit n of a byte is the whole part of 3 * r / 256, r the low 8 bits of byte * 3^n.
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32
from kinetic.formats import Integers
from kinetic.formats.values import decoded

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "TQ1_0", 34, 256, 54, True
BITS, ZERO, SCALES, D_AT, M_AT = 2, 1, "block", 52, -1
TABLE, UNIT, SCALE_TYPE = None, 1.0, "f16"

POWERS = (1, 3, 9, 27, 81)


def unsigned(block: NDArray[np.uint8], i: int) -> int:
    if i < 160:
        byte, n = block[i & 31], i >> 5
    elif i < 240:
        byte, n = block[32 + (i & 15)], (i - 160) >> 4
    else:
        byte, n = block[48 + (i & 3)], (i - 240) >> 2
    return ((byte * POWERS[n] & 255) * 3) >> 8


def integers(raw: NDArray[np.uint8]) -> Integers:
    blocks = raw.reshape(len(raw), -1, BYTES)
    powers = np.array(POWERS, np.uint8)[:, None]
    parts = [(blocks[..., 0:32], 5), (blocks[..., 32:48], 5), (blocks[..., 48:52], 4)]
    left = [(part[..., None, :] * powers[:count]).reshape(*blocks.shape[:2], -1) for part, count in parts]
    digits = (np.concatenate(left, axis=-1).astype(np.uint16) * np.uint16(3)) >> 8
    q = digits.astype(np.int8) - np.int8(ZERO)
    scale = np.repeat(f16_to_f32(blocks[..., 52:54]), 8, axis=-1)
    return Integers(q.reshape(len(raw), -1), scale.reshape(len(raw), -1))


def decode(raw: NDArray[np.uint8]) -> F32:
    return decoded(integers, raw)


GPU = """
DEVICE int tq1_0_q(GLOBAL const uchar *w, int i)
{
    int n = i < 160 ? i >> 5 : i < 240 ? (i - 160) >> 4 : (i - 240) >> 2;
    uint r = i < 160 ? w[i & 31] : i < 240 ? w[32 + (i & 15)] : w[48 + (i & 3)];
    for (; n > 0; n--)
        r = r * 3 & 255;
    return (int)(r * 3 >> 8) - 1;
}

DEVICE float tq1_0_scale(GLOBAL const uchar *w, int i)
{
    return f16_at(w + 52);
}
"""
