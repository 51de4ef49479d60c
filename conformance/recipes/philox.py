"""Philox4x32-10 for many counters at once: bit for bit what ``kinetic.rng`` computes one by one.

Integer arithmetic alone, so a recipe gives the same file on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def random_bits(seed: int, stream: int, count: int) -> U64:
    """uint64 [count]: ``kinetic.rng.random_bits(seed, stream, position, 0)`` for positions 0 .. count - 1.

    ``count`` is below 2^32.
    """
    c0 = np.arange(count, dtype=np.uint64)
    c1, c2, c3 = np.zeros_like(c0), np.zeros_like(c0), np.full_like(c0, stream)
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2  # both factors are below 2^32
        k0, k1 = map(np.uint64, keys)
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _WEYL, strict=True)]
    return c0 | c1 << _HALF
