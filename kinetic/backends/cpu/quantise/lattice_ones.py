"""IQ1: 256 values in sub-blocks with a 3-bit scale, each 8 of them a lattice point -1, 0, 1 plus or minus 1/8.

ggml's ``quantize_row_iq1_s_impl`` and ``quantize_row_iq1_m_impl``. Imported only by the build process.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.emitted import field, write_i64
from kinetic.backends.cpu.quantise.lattice_search import make_neighbour
from kinetic.backends.cpu.quantise.lattice_splits import M_SIZE, S_SIZE, split_m, split_s
from kinetic.backends.cpu.quantise.lattice_tables import PACKED, POINT, STATUS
from kinetic.backends.cpu.quantise.lattice_values import SUPER, put_word, weigh
from kinetic.backends.cpu.quantise.memory import bytes_at, floats, floats_at, ints, ints_at, kernel, small
from kinetic.backends.cpu.quantise.numbers import HALF, ONE, ZERO, half_bits, nearest, put_half, within
from kinetic.backends.cpu.quantise.weights import sum_of_squares

WIDTH, S_GROUPS, M_GROUPS = 8, S_SIZE // 8, M_SIZE // 8
S_SUBS, M_SUBS = SUPER // S_SIZE, SUPER // M_SIZE
S_BYTES, M_BYTES = 50, 56
UP, DOWN = np.float32(0.125), np.float32(-0.125)
TWO, MEAN_OF = np.float32(2), np.float32(SUPER)
FACTORS, LARGEST_FACTOR = np.float32(15), np.int32(7)
"""A sub-block's scale is d * (2 * factor + 1), factor 0 .. 7; d is 1 / 15 of the largest scale."""
S_FUDGE, M_FUDGE = np.float32(1.125), np.float32(1.1125)
"""What the stored d is multiplied by."""
S_TINY, M_TINY = np.float32(1e-12), np.float32(1e-7)
"""A sub-block whose largest magnitude is below it has scale 0."""

new_weights, new_scales, new_ranks = floats(SUPER), floats(M_SUBS), ints(S_SIZE)
new_points, new_choices = ints(SUPER // WIDTH), ints(M_SUBS)

neighbour = make_neighbour(WIDTH, shifted=True)


@small
def largest(x, at, size):
    """The largest magnitude of ``size`` values from ``at`` on."""
    most = abs(x[at])
    for i in range(at + 1, at + size):
        most = most if most > abs(x[i]) else abs(x[i])
    return most


@small
def value_of(packed, i, delta):
    """Value ``i`` of a point: its code, 0 .. 2, less 1, and delta."""
    return np.float32(np.int32((packed >> np.int32(4 * i)) & np.int32(3))) + (delta - ONE)


@small
def factor_of(inverse, scale):
    return within(np.int32(0), nearest(HALF * (inverse * scale - ONE)), LARGEST_FACTOR)


@small
def key_of(rank, start, low, middle, turned):
    """The key of eight values: code 0 for a rank below ``low``, 1 below ``middle``, else 2; or 2, 1, 0."""
    key = 0
    for i in range(WIDTH):
        place = rank[start + WIDTH - 1 - i]
        code = (1 if place >= low else 0) + (1 if place >= middle else 0)
        key = key * 3 + (2 - code if turned else code)
    return key


@small
def refitted(record, x, w, at, points, deltas, scale):
    """The best scale for the points of the values from ``at`` on, if there is one."""
    packed, product, square = ints_at(field(record, PACKED)), ZERO, ZERO
    for k in range(len(deltas)):
        for i in range(WIDTH):
            j = at + k * WIDTH + i
            weighted = w[j] * value_of(packed[points[j // WIDTH]], i, deltas[k])
            product += weighted * x[j]
            square += weighted * value_of(packed[points[j // WIDTH]], i, deltas[k])
    return product / square if product > ZERO and square > ZERO else scale


@small
def placed(record, x, w, at, rank, split, deltas, points):
    """Points of a sub-block from ``at`` on, and its scale. split: scale, the two counts, and whether negated."""
    scale, low, middle, turned = split
    all_on = True
    for k in range(len(deltas)):
        key, start = key_of(rank, k * WIDTH, low, middle, turned), at + k * WIDTH
        point = np.int64(ints_at(field(record, POINT))[key])
        if point < 0:
            point, all_on = neighbour(record, key, x, w, start, scale, deltas[k] - ONE), False
        points[start // WIDTH] = np.int32(point)
    if not all_on:
        scale = refitted(record, x, w, at, points, deltas, scale)
    if not scale >= ZERO:
        write_i64(record + 8 * STATUS, 1)
    return scale


@small
def fit_s(record, x, w, at, points):
    """Scale of 32 values, 0 without points, and the sign of their 1/8."""
    if largest(x, at, S_SIZE) < S_TINY:
        return ZERO, UP
    rank = new_ranks()
    scale, low, middle, delta = split_s(x, w, at, rank)
    if low < 0:
        return ZERO, UP
    turned = scale < ZERO
    scale, delta = (-scale, -delta) if turned else (scale, delta)
    split = scale, low, middle, turned
    return placed(record, x, w, at, rank, split, (delta, delta, delta, delta), points), delta


@small
def clear(y, size):
    for i in range(size):
        y[i] = np.uint8(0)


@small
def put_points_s(y, sub, points):
    high = np.int64(0)
    for k in range(S_GROUPS):
        point = np.int64(points[S_GROUPS * sub + k])
        y[2 + S_GROUPS * sub + k] = np.uint8(point & 255)
        high |= (point >> 8) << (3 * k)
    put_word(y, 34 + 2 * sub, high, 2)


@kernel
def iq1_s(source, importance, target, rows, width, record):
    for block in range(rows * width // SUPER):
        x, y = floats_at(source + 4 * SUPER * block), bytes_at(target + S_BYTES * block)
        w, scales, deltas, points = new_weights(), new_scales(), new_scales(), new_points()
        weigh(x, 0, importance + 4 * (block * SUPER % width), TWO * sum_of_squares(x, SUPER) / MEAN_OF, ZERO, SUPER, w)
        clear(y, S_BYTES)
        for i in range(SUPER // WIDTH):
            points[i] = np.int32(0)
        most = ZERO
        for sub in range(S_SUBS):
            scales[sub], deltas[sub] = fit_s(record, x, w, S_SIZE * sub, points)
            put_points_s(y, sub, points)
            most = most if most > scales[sub] else scales[sub]
        if most != ZERO:
            put_scales_s(y, scales, deltas, most)


@small
def put_scales_s(y, scales, deltas, most):
    d = most / FACTORS
    put_half(y, 0, d * S_FUDGE)
    inverse = ONE / d
    for sub in range(S_SUBS):
        factor = factor_of(inverse, scales[sub]) | (8 if deltas[sub] < ZERO else 0)
        y[35 + 2 * sub] |= np.uint8(factor << 4)


@small
def deltas_of(choice):
    """Of both halves of 16 values."""
    return UP if choice < 2 else DOWN, DOWN if choice & 1 else UP


@small
def fit_m(record, x, w, at, points):
    """Scale of 16 values, 0 without points, and which signs their halves' 1/8 have."""
    if largest(x, at, M_SIZE) < M_TINY:
        return ZERO, 0
    rank = new_ranks()
    scale, low, middle, choice = split_m(x, w, at, rank)
    if low < 0:
        return ZERO, 0
    turned = scale < ZERO
    scale, choice = (-scale, 3 - choice) if turned else (scale, choice)
    return placed(record, x, w, at, rank, (scale, low, middle, turned), deltas_of(choice), points), choice


@small
def put_points_m(y, sub, points, choice):
    first, second = points[2 * sub], points[2 * sub + 1]
    y[2 * sub], y[2 * sub + 1] = np.uint8(first & 255), np.uint8(second & 255)
    signs = (8 if choice & 1 else 0) << 4 | (8 if choice >= 2 else 0)
    y[32 + sub] = np.uint8(first >> 8 | second >> 8 << 4 | signs)


@kernel
def iq1_m(source, importance, target, rows, width, record):
    for block in range(rows * width // SUPER):
        x, y = floats_at(source + 4 * SUPER * block), bytes_at(target + M_BYTES * block)
        w, scales, choices, points = new_weights(), new_scales(), new_choices(), new_points()
        weights_at = importance + 4 * (block * SUPER % width) if importance != 0 else 0
        weigh(x, 0, weights_at, TWO * sum_of_squares(x, SUPER) / MEAN_OF, ZERO, SUPER, w)
        clear(y, M_BYTES)
        for i in range(SUPER // WIDTH):
            points[i] = np.int32(0)
        most = ZERO
        for sub in range(M_SUBS):
            scale, choice = fit_m(record, x, w, M_SIZE * sub, points)
            scales[sub], choices[sub] = scale, np.int32(choice)
            most = most if most > scale else scale
            put_points_m(y, sub, points, choice)
        if most != ZERO:
            put_scales_m(y, record, x, w, scales, choices, points, most)


@small
def put_scales_m(y, record, x, w, scales, choices, points, most):
    """Factors of 3 bits, four to 16 bits; their upper four bits are those of d, fitted to all values once more."""
    packed, d, product, square = ints_at(field(record, PACKED)), most / FACTORS, ZERO, ZERO
    inverse = ONE / d
    for sub in range(M_SUBS):
        factor = factor_of(inverse, scales[sub])
        at = 48 + 2 * (sub // 4)
        put_word(y, at, (y[at] | np.int64(y[at + 1]) << 8) | np.int64(factor) << (3 * (sub % 4)), 2)
        deltas, span = deltas_of(choices[sub]), np.float32(2 * factor + 1)
        for j in range(M_SIZE * sub, M_SIZE * (sub + 1)):
            delta = deltas[0] if j % M_SIZE < WIDTH else deltas[1]
            q = value_of(packed[points[j // WIDTH]], j % WIDTH, delta) * span
            weighted = w[j] * q
            product += weighted * x[j]
            square += weighted * q
    half = half_bits((product / square if square > ZERO else d) * M_FUDGE)
    for k in range(4):
        y[49 + 2 * k] |= np.uint8((half >> np.int32(4 * k)) & np.int32(15)) << 4


KERNELS = {19: iq1_s, 29: iq1_m}
