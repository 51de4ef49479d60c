"""MXFP4 and NVFP4: 4-bit floats (E2M1) times a power of two a block of 32, or an 8-bit float a block of 16.

The scales here are half of those in the specification, and the floats doubled, so that they are integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats, floats_at, kernel, load, small
from kinetic.backends.cpu.quantise.numbers import HALF, ZERO, bits_of, float_of, largest_magnitude

LONG, LONG_BYTES = 32, 17
SHORT, PARTS, SHORT_BYTES = 16, 4, 36
DOUBLED = (1, 2, 3, 4, 6, 8, 12)
"""Magnitudes of the floats but 0, doubled."""

LOG2_E = 1.4426950408889634
TWO_64 = np.float32(2.0**64)
SIX, LARGEST, SUBNORMALS = np.float32(6), np.float32(448), np.float32(512)

values, quants = floats(LONG), bytes_(LONG)


def _candidate(before: Any, number: int, doubled: int) -> Any:
    """(size, scale) -> the code and the error of the best candidate so far. Of two equally near, the first."""
    magnitude, code_here = np.float32(doubled), np.int32(number)

    @small
    def best(size, scale):
        code, error = before(size, scale)
        distance = abs(magnitude * scale - size)
        is_nearer = distance < error
        return code_here if is_nearer else code, distance if is_nearer else error

    return best


@small
def _zero(size, scale):
    return np.int32(0), size


_best = _zero
for _number, _doubled in enumerate(DOUBLED, 1):
    _best = _candidate(_best, _number, _doubled)


@small
def _nearest_floats(x, q, count, scale):
    """Codes: sign and magnitude. Zero has no sign."""
    for j in range(count):
        code, _ = _best(abs(x[j]), scale)
        is_negative = (x[j] < ZERO) & (code > np.int32(0))
        q[j] = np.uint8(code + 8 if is_negative else code)


@small
def _put_codes(q, y, at, half):
    """Two codes a byte: those of values half a block apart."""
    for j in range(half):
        y[at + j] = np.uint8(q[j] | q[j + half] << 4)


@small
def floor_log2(x):
    """``floorf(log2f(x))`` of a positive x. Right below a power of two, ``log2f`` rounds up to it."""
    is_small = x < np.float32(2.0**-126)
    bits = bits_of(x * TWO_64 if is_small else x)
    above = (bits >> np.int32(23)) - (127 + 64 if is_small else 127) + 1
    below = np.float64(float_of(np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F800000)))) * 0.5
    logarithm = np.float32(np.float64(above) - (1.0 - below) * LOG2_E)
    return above if logarithm == np.float32(above) else above - 1


@kernel
def mxfp4(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for block in range(rows * width // LONG):
        y = bytes_at(target + block * LONG_BYTES)
        load(x, floats_at(source + block * LONG * 4), LONG)
        most = largest_magnitude(x, LONG)
        # Of what is too small for the exponent's byte, ggml keeps the low eight bits.
        exponent = (floor_log2(most) + 125) & 255 if most > ZERO else 0
        y[0] = np.uint8(exponent)
        bits = (exponent - 1) << 23 if exponent >= 2 else 0x00200000 << exponent
        _nearest_floats(x, q, LONG, float_of(np.int32(bits)))
        _put_codes(q, y, 1, LONG // 2)


@small
def _scale_byte(x):
    """Unsigned float of 4 exponent and 3 mantissa bits, half a unit rounded up. From 248 on it is 448, the largest."""
    if not x > ZERO:
        return 0
    x = x if x < LARGEST else LARGEST
    bits = np.int64(bits_of(x))
    exponent = (bits >> 23) - 120
    if exponent <= 0:
        return min(np.int64(x * SUBNORMALS + HALF), 7)
    byte = ((bits >> 19) + 1 >> 1) - (120 << 3)
    return byte if byte < 0x78 else 0x7E


@small
def _scale_of(byte):
    """Half the value of a scale byte."""
    exponent, mantissa = byte >> 3, byte & 7
    if exponent == 0:
        return np.float32(mantissa) * np.float32(2.0**-10)
    return float_of(np.int32((exponent + 119) << 23 | mantissa << 20))


@kernel
def nvfp4(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for part in range(rows * width // SHORT):
        block, number = part // PARTS, part % PARTS
        y = bytes_at(target + block * SHORT_BYTES)
        load(x, floats_at(source + part * SHORT * 4), SHORT)
        byte = _scale_byte(largest_magnitude(x, SHORT) / SIX)
        y[number] = np.uint8(byte)
        _nearest_floats(x, q, SHORT, _scale_of(byte))
        _put_codes(q, y, PARTS + number * (SHORT // 2), SHORT // 2)


KERNELS = {39: mxfp4, 40: nvfp4}
