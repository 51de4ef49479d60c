"""The 12-byte table of eight 6-bit scales and eight 6-bit minimums that Q4_K and Q5_K share.

bytes 0-3    low 6 bits: scale of block 0..3;  high 2 bits: bits 4-5 of scale 4..7
bytes 4-7    low 6 bits: minimum of block 0..3; high 2 bits: bits 4-5 of minimum 4..7
bytes 8-11   low nibble: bits 0-3 of scale 4..7; high nibble: bits 0-3 of minimum 4..7
"""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import f16_to_f32
from kinetic.formats import Integers


def scales_and_minimums(table: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """table uint8 [..., 12] -> scales, minimums uint8 [..., 8], 0..63."""
    a, b, c = table[..., 0:4], table[..., 4:8], table[..., 8:12]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=-1)
    minimums = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=-1)
    return scales, minimums


def scale_factor(block: NDArray[np.uint8], b: int) -> int:
    """Scale of 32-block b (0..7) of a superblock whose table starts at byte 4."""
    if b < 4:
        return block[4 + b] & 63
    return (block[8 + b] & 15) | (block[b] >> 6 << 4)


def minimum_factor(block: NDArray[np.uint8], b: int) -> int:
    """Minimum of 32-block b (0..7)."""
    if b < 4:
        return block[8 + b] & 63
    return (block[8 + b] >> 4) | (block[4 + b] >> 6 << 4)


def with_scales(q: NDArray[np.int8], superblocks: NDArray[np.uint8]) -> Integers:
    """q int8 [N, S, 256]; superblocks uint8 [N, S, bytes] that begin with d, dmin and the table.

    scale = d * s and minimum = -(dmin * m), both exact in float32.
    """
    n = len(q)
    d = f16_to_f32(superblocks[..., 0:2])
    dmin = f16_to_f32(superblocks[..., 2:4])
    s, m = scales_and_minimums(superblocks[..., 4:16])
    scale = (d * s.astype(np.float32)).reshape(n, -1)
    minimum = (-(dmin * m.astype(np.float32))).reshape(n, -1)
    return Integers(q.reshape(n, -1), scale, minimum)
