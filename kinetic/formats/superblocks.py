"""Integers of formats whose d belongs to a superblock of 256 values and is multiplied by small integer factors."""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.formats import Integers


def with_factors(q: NDArray[np.int8], d: F32, factors: NDArray[np.integer]) -> Integers:
    """A factor for each 32: q int8 [N, S, ...] of 256 values, d float32 [N, S, 1], factors [N, S, 8].

    The scales ``d * factor`` are exact.
    """
    n = len(q)
    return Integers(q.reshape(n, -1), (d * factors.astype(np.float32)).reshape(n, -1))


def with_halves(q: NDArray[np.int8], d: F32, factors: NDArray[np.integer]) -> Integers:
    """A factor for each 16: q int8 [N, S, ...] of 256 values, d float32 [N, S, 1], factors [N, S, 16]."""
    n = len(q)
    return Integers(
        q.reshape(n, -1), np.repeat(d, 8, axis=-1).reshape(n, -1), None, factors.astype(np.int8).reshape(n, -1)
    )


def two_nibbles(stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """stored uint8 [N, S, bytes] -> uint8 [N, S, 2 * bytes]: each byte's low nibble, then its high one."""
    return np.stack([stored & 15, stored >> 4], axis=-1).reshape(*stored.shape[:2], -1)
