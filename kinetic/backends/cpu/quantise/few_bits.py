"""Q1_0, Q2_0, TQ1_0 and TQ2_0: signs, or -1, 0, 1 (and 2), times one scale. No importance."""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.k_bytes import write_two_bits
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats, floats_at, kernel, load, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, largest_magnitude, put_half, rounded, within

SUPER = 256
SIGNS, PAIRS = 128, 64
"""Values in a block of Q1_0, of Q2_0."""
ONE_BYTES, TWO_BYTES, TERNARY_BYTES, TWO_BIT_BYTES = 18, 18, 54, 66

values, quants = floats(SUPER), bytes_(SUPER)


@small
def _trits(x, q, d):
    """-1, 0, 1 as 0, 1, 2. Where the inverse of ``d`` overflows, all are 1, as on x86."""
    inverse = ONE / d if d != ZERO else ZERO
    for j in range(SUPER):
        q[j] = np.uint8((rounded(x[j] * inverse) + 1) & 3)


@kernel
def q1_0(source, importance, target, rows, width, tables):
    for block in range(rows * width // SIGNS):
        v, y = floats_at(source + block * SIGNS * 4), bytes_at(target + block * ONE_BYTES)
        total = ZERO
        for j in range(SIGNS):
            total += abs(v[j])
        put_half(y, 0, total / np.float32(SIGNS))
        for byte in range(SIGNS // 8):
            bits = 0
            for j in range(8):
                bits |= int(v[8 * byte + j] >= ZERO) << j
            y[2 + byte] = np.uint8(bits)


@kernel
def q2_0(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for block in range(rows * width // PAIRS):
        y = bytes_at(target + block * TWO_BYTES)
        load(x, floats_at(source + block * PAIRS * 4), PAIRS)
        d = largest_magnitude(x, PAIRS)
        inverse = ONE / d if d > ZERO else ZERO
        put_half(y, 0, d)
        for j in range(PAIRS):
            q[j] = np.uint8(within(np.int32(-1), rounded(x[j] * inverse), np.int32(2)) + 1)
        for byte in range(PAIRS // 4):
            a, b, c, e = q[4 * byte], q[4 * byte + 1], q[4 * byte + 2], q[4 * byte + 3]
            y[2 + byte] = np.uint8(a | b << 2 | c << 4 | e << 6)


@small
def _put_five(q, at, stride, y, to, count):
    """Five trits a byte: as a fraction of 3^5 in 256ths, rounded up, so that each unfolds by a multiplication."""
    for j in range(count):
        number = 0
        for n in range(5):
            number = number * 3 + q[at + j + n * stride]
        y[to + j] = np.uint8((number * 256 + 242) // 243)


@kernel
def tq1_0(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for block in range(rows * width // SUPER):
        y = bytes_at(target + block * TERNARY_BYTES)
        load(x, floats_at(source + block * SUPER * 4), SUPER)
        d = largest_magnitude(x, SUPER)
        put_half(y, 52, d)
        _trits(x, q, d)
        _put_five(q, 0, 32, y, 0, 32)
        _put_five(q, 160, 16, y, 32, 16)
        for j in range(4):  # four trits and a zero
            number = ((q[240 + j] * 3 + q[244 + j]) * 3 + q[248 + j]) * 3 + q[252 + j]
            y[48 + j] = np.uint8((number * 3 * 256 + 242) // 243)


@kernel
def tq2_0(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for block in range(rows * width // SUPER):
        y = bytes_at(target + block * TWO_BIT_BYTES)
        load(x, floats_at(source + block * SUPER * 4), SUPER)
        d = largest_magnitude(x, SUPER)
        put_half(y, 64, d)
        _trits(x, q, d)
        write_two_bits(q, y, 0)


KERNELS = {34: tq1_0, 35: tq2_0, 41: q1_0, 42: q2_0}
