"""Activations as 8-bit blocks of 32, the right-hand side of every product with a quantised weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK
from kinetic.backends.reference.functions import MAGIC, MAGIC_BITS, fma32
from kinetic.bits import F32

SMALLEST = np.uint32(0x12800000)
"""Bits of 2^-90: below it a block becomes zero, since 127 / amax would overflow before amax is that small."""

INFINITY = np.uint32(0x7F800000)


class Activations(NamedTuple):
    """``q`` int32 [T, K/32, 32] in -127..127, ``d`` float32 [T, K/32], so that x is about ``q * d``."""

    q: NDArray[np.int32]
    d: F32


def quantise(x: F32) -> Activations:
    """x float32 [T, K], K a multiple of 32.

    ``d = amax / 127``; ``q`` is the exact product ``x * (127 / amax)`` rounded
    once, to nearest even. A block with an infinity or a NaN gets d = NaN, q = 0;
    a block below 2^-90 gets d = 0, q = 0.
    """
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    amax_bits = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=-1)
    amax = amax_bits.view(np.float32)
    usable = (amax_bits < INFINITY) & (amax_bits >= SMALLEST)
    safe = np.where(usable, amax, np.float32(1))
    inverse = np.asarray(np.float32(127) / safe, np.float32)[..., None]
    rounded = fma32(np.where(usable[..., None], blocks, np.float32(0)), inverse, MAGIC)
    q = rounded.view(np.int32) - MAGIC_BITS
    d = np.where(usable, safe / np.float32(127), np.where(amax_bits >= INFINITY, np.float32(np.nan), np.float32(0)))
    return Activations(q, d)
