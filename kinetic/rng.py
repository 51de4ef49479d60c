"""The random bits of a draw: Philox4x32-10, a generator without a state.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC11). Unsigned 32-bit integer arithmetic only, so every device and
language can compute it, and any position can be computed alone.

    key words      seed mod 2^32, seed div 2^32
    counter words  position mod 2^32, position div 2^32, purpose, completion index
    random bits    word 0 + 2^32 * word 1 of the output; words 2 and 3 are not used

``seed`` and ``position`` are unsigned 64-bit, ``purpose`` and ``completion
index`` unsigned 32-bit. The position is the number of tokens before the one to
be drawn, the prompt included; it is never a slot in a cache. Two draws share
their bits only if all four numbers are equal, and no draw depends on another.
"""

from __future__ import annotations

DRAW = 0
"""Purpose of the bits that choose the token."""
XTC = 1
"""Purpose of the bits that decide whether XTC applies."""

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words from four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def random_bits(seed: int, completion_index: int, position: int, purpose: int) -> int:
    """64 random bits for one decision."""
    counter = (position & _MASK, position >> 32, purpose, completion_index)
    words = philox4x32(counter, (seed & _MASK, seed >> 32))
    return words[0] | words[1] << 32
