"""The scale of a block without a minimum: value is about scale * level, level in -top .. top - 1.

The scale that maps the largest value to -top is tried first, then eighteen near it. For the levels that each
makes the best scale follows (weighted least squares), and the one that leaves the smallest error wins.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.lanes import LANES, copy, fill, lane_floats, lane_values
from kinetic.backends.cpu.quantise.memory import small
from kinetic.backends.cpu.quantise.numbers import ZERO, nearest, whole_float, within

TINY = np.float32(1e-15)
"""A block whose largest magnitude is below it is all zero."""
STEPS, STEP = 9, np.float32(0.1)


@small
def level(x, inverse, top):
    """Whole float32 in -top .. top - 1. No finite value is mapped so far that ``whole_float`` would fail."""
    return within(np.float32(-top), whole_float(inverse * x), np.float32(top - 1))


@small
def _sums(x, w, wx, length, top, inverse, products, squares):
    """Weighted sums of value * level and of level * level. ``wx`` is weight * value."""
    fill(products, ZERO)
    fill(squares, ZERO)
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            q = level(x[at + lane], inverse[lane], top)
            products[lane] = products[lane] + wx[at + lane] * q
            squares[lane] = squares[lane] + (w[at + lane] * q) * q


@small
def largest(x, length, value, size):
    """Per lane the first value of the largest magnitude, and its magnitude."""
    fill(value, ZERO)
    fill(size, ZERO)
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            v = x[at + lane]
            is_larger = abs(v) > size[lane]
            value[lane] = v if is_larger else value[lane]
            size[lane] = abs(v) if is_larger else size[lane]


@small
def search_scale(x, w, length, top, scale, chosen):
    """``x``, ``w`` float32 [length, 16] -> ``scale`` [16], and the inverse that makes the levels (0: zero block)."""
    wx, value, size, inverse = lane_values(), lane_floats(), lane_floats(), lane_floats()
    products, squares, best = lane_floats(), lane_floats(), lane_floats()
    largest(x, length, value, size)
    for j in range(length * LANES):
        wx[j] = w[j] * x[j]
    for lane in range(LANES):
        inverse[lane] = np.float32(-top) / value[lane]
    _sums(x, w, wx, length, top, inverse, products, squares)
    copy(chosen, inverse)
    for lane in range(LANES):
        scale[lane] = products[lane] / squares[lane] if squares[lane] != ZERO else ZERO
        best[lane] = scale[lane] * products[lane]
    for step in range(-STEPS, STEPS + 1):
        if step == 0:
            continue
        near = -(np.float32(top) + STEP * np.float32(step))
        for lane in range(LANES):
            inverse[lane] = near / value[lane]
        _sums(x, w, wx, length, top, inverse, products, squares)
        for lane in range(LANES):
            product, square = products[lane], squares[lane]
            is_better = (square > ZERO) & (product * product > best[lane] * square)
            found = product / square
            scale[lane] = found if is_better else scale[lane]
            best[lane] = found * product if is_better else best[lane]
            chosen[lane] = inverse[lane] if is_better else chosen[lane]
    for lane in range(LANES):
        is_zero = size[lane] < TINY
        scale[lane] = ZERO if is_zero else scale[lane]
        chosen[lane] = ZERO if is_zero else chosen[lane]


@small
def _any_level(x, inverse, top):
    """``level`` as an int32, of any number: scales of huge values need not be finite."""
    return within(np.int32(-top), nearest(inverse * x), np.int32(top - 1))


@small
def _sums_of_one(x, w, count, top, inverse):
    products, squares = ZERO, ZERO
    for i in range(count):
        q = np.float32(_any_level(x[i], inverse, top))
        products += (w[i] * x[i]) * q
        squares += (w[i] * q) * q
    return products, squares


@small
def search_one(x, w, count, top, levels):
    """``search_scale`` of one block: ``x``, ``w`` float32 [count] -> the scale, and ``levels`` + ``top``, int32."""
    value, size = ZERO, ZERO
    for i in range(count):
        is_larger = abs(x[i]) > size
        value = x[i] if is_larger else value
        size = abs(x[i]) if is_larger else size
    chosen = np.float32(-top) / value
    products, squares = _sums_of_one(x, w, count, top, chosen)
    scale = products / squares if squares != ZERO else ZERO
    best = scale * products
    for step in range(-STEPS, STEPS + 1):
        if step == 0:
            continue
        inverse = -(np.float32(top) + STEP * np.float32(step)) / value
        products, squares = _sums_of_one(x, w, count, top, inverse)
        if squares > ZERO and products * products > best * squares:
            scale = products / squares
            best, chosen = scale * products, inverse
    is_zero = size < TINY
    for i in range(count):
        levels[i] = np.int32(0) if is_zero else np.int32(_any_level(x[i], chosen, top) + top)
    return ZERO if is_zero else scale
