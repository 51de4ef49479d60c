"""Conversions of numbers that quantisers share. Each is exact or rounds once, as ggml's does.

Numba widens int32 arithmetic to int64 and mixes of int32 and float32 to float64, so every constant has
a type and every integer result is cut back.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.memory import small

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
INFINITE = np.float32(np.inf)
MAGIC = np.float32(12582912.0)
"""1.5 * 2^23: a float32 of less than 2^22 that is added to it loses its fraction, rounded to nearest even."""
MANTISSA, MIDDLE = np.int32(0x007FFFFF), np.int32(0x00400000)
MAGNITUDE, INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
TWO_31 = np.float32(2147483648.0)
LOWEST = np.int32(-(2**31))

HALF_HUGE, HALF_TINY = np.float32(2.0**112), np.float32(2.0**-110)
HALF_LEAST, HALF_SHIFT = np.int32(0x38800000), np.int32(0x07800000)
HALF_EXPONENT, HALF_MANTISSA, HALF_NAN = np.int32(0x7C00), np.int32(0x0FFF), np.int32(0x7E00)


@small
def bits_of(x):
    return np.float32(x).view(np.int32)


@small
def nearest(x):
    """The nearest integer, ties to even; of 2^22 and above, what ggml's trick leaves of it."""
    return np.int32((bits_of(x + MAGIC) & MANTISSA) - MIDDLE)


@small
def whole_float(x):
    """The nearest integer, ties to even, as a float32. Only of less than 2^22."""
    return (x + MAGIC) - MAGIC


@small
def within(low, value, high):
    """``value``, or the bound it exceeds; all three of one type."""
    value = value if value < high else high
    return value if value > low else low


@small
def whole(x):
    """The integer part, toward zero. What int32 can't hold, or is no number, becomes -2^31, as on x86."""
    fits = (x < TWO_31) and (x >= -TWO_31)
    return np.int32(x if fits else -TWO_31)


@small
def rounded(x):
    """``roundf`` as an int32: half away from zero. The fraction is exact, so 0.49999997 stays below a half."""
    cut = whole(x)
    fraction = x - np.float32(cut)
    up, down = np.int32(fraction >= HALF), np.int32(fraction <= -HALF)
    return cut if cut == LOWEST else np.int32(np.int32(cut + up) - down)


@small
def magnitude_bits(x):
    """Bits of |x|, which order like the numbers; 0 for a NaN, which is larger than nothing."""
    bits = np.int32(bits_of(x) & MAGNITUDE)
    return bits if bits <= INFINITY else np.int32(0)


@small
def largest_magnitude(x, count):
    most = np.int32(0)
    for j in range(count):
        size = magnitude_bits(x[j])
        most = size if size > most else most
    return float_of(most)


@small
def float_of(bits):
    return np.int32(bits).view(np.float32)


@small
def half_bits(x):
    """float16 nearest to ``x``, ties to even, as an int32. Overflow is infinity, a NaN becomes 0x7E00 and its sign.

    Adding a number whose last place is that of the float16 rounds away what float16 can't hold.
    """
    bits = bits_of(x)
    size = np.int32(bits & MAGNITUDE)
    base = (abs(x) * HALF_HUGE) * HALF_TINY
    exponent = np.int32(size & INFINITY)
    exponent = exponent if exponent > HALF_LEAST else HALF_LEAST
    made = bits_of(float_of(np.int32(exponent + HALF_SHIFT)) + base)
    value = np.int32(((made >> np.int32(13)) & HALF_EXPONENT) + (made & HALF_MANTISSA))
    sign = np.int32((bits >> np.int32(16)) & np.int32(0x8000))
    return np.int32(sign | (HALF_NAN if size > INFINITY else value))


@small
def float_of_half(half):
    """The float32 of float16 bits."""
    size = np.int32(np.int32(half & np.int32(0x7FFF)) << np.int32(13))
    value = float_of(size) * HALF_HUGE
    value = value if (half & HALF_EXPONENT) != HALF_EXPONENT else float_of(np.int32(size | INFINITY))
    return -value if half & np.int32(0x8000) else value


@small
def put_half(target, at, x):
    """``x`` as a float16 at ``target[at]``."""
    half = half_bits(x)
    target[at] = np.uint8(half & np.int32(255))
    target[at + 1] = np.uint8((half >> np.int32(8)) & np.int32(255))
    return half


@small
def in_order(bits):
    """float32 bits as an int32 of the same order (-0 just below 0), and back."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & MAGNITUDE))
