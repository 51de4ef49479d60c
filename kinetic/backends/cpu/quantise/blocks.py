"""Q4_0, Q4_1, Q5_0 and Q5_1: 32 values with one scale and, in those named _1, a minimum.

Without importance the scale maps the largest magnitude (or the whole range) to the levels; with it
the scale is searched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kinetic.backends.cpu.quantise.affine_search import TRIES, found_level, new_found, search_affine
from kinetic.backends.cpu.quantise.lanes import LANES, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats, floats_at, kernel, load, small
from kinetic.backends.cpu.quantise.numbers import (
    HALF,
    INFINITE,
    ONE,
    ZERO,
    bits_of,
    float_of,
    in_order,
    largest_magnitude,
    put_half,
)
from kinetic.backends.cpu.quantise.scale_search import level, search_scale
from kinetic.backends.cpu.quantise.weights import importance_weights, sum_of_squares

BLOCK = 32

values, quants = floats(BLOCK), bytes_(BLOCK)


class Shape(NamedTuple):
    """What tells one of these formats from the others."""

    bytes: int
    bits: int
    has_minimum: bool


@small
def _first_of_size(x, size):
    """The first value of a magnitude that occurs; of zeros, the positive one."""
    first = np.int32(BLOCK)
    for j in range(BLOCK):
        place = np.int32(j) if abs(x[j]) == size else np.int32(BLOCK)
        first = place if place < first else first
    return x[first] if size > ZERO else ZERO


@small
def _first_zero(x):
    """The first zero, which gives the minimum its sign."""
    for j in range(BLOCK):
        if x[j] == ZERO:
            return x[j]
    return ZERO


@small
def _range(x):
    """The smallest value and the largest."""
    low = high = in_order(bits_of(x[0]))
    for j in range(BLOCK):
        place = in_order(bits_of(x[j]))
        low = place if place < low else low
        high = place if place > high else high
    smallest, largest = float_of(in_order(low)), float_of(in_order(high))
    if smallest == ZERO:
        smallest = _first_zero(x)
    return smallest, largest


@small
def _levels(x, q, start, d, middle, top):
    """Where the inverse of ``d`` overflows, all levels are 0, as what ggml makes of infinities on x86."""
    inverse = ONE / d if d != ZERO else ZERO
    is_lost = abs(inverse) == INFINITE
    inverse, middle = ZERO if is_lost else inverse, ZERO if is_lost else middle
    for j in range(BLOCK):
        q[j] = np.uint8(min(np.int32((x[j] - start) * inverse + middle), np.int32(top)))


@small
def _put_levels(q, y, at, bits):
    """Two levels a byte, those of values 16 apart; before them their fifth bits, a bit a value."""
    if bits == 5:
        for group in range(4):
            fifths = 0
            for j in range(8):
                fifths |= (q[8 * group + j] >> 4) << j
            y[at + group] = np.uint8(fifths)
        at += 4
    for j in range(16):
        y[at + j] = np.uint8((q[j] & 15) | (q[j + 16] & 15) << 4)


def _plain(shape: Shape) -> Any:
    """(x, q, y): writes a block without a search."""
    _, bits, has_minimum = shape
    top, middle, levels_at = (1 << bits) - 1, 1 << bits - 1, 4 if has_minimum else 2
    offset, steps, lowest = np.float32(middle + 0.5), np.float32(top), np.float32(-middle)

    @small
    def put(x, q, y):
        if has_minimum:
            low, high = _range(x)
            d = (high - low) / steps
            put_half(y, 2, low)
        else:
            low, d = ZERO, _first_of_size(x, largest_magnitude(x, BLOCK)) / lowest
        put_half(y, 0, d)
        _levels(x, q, low, d, HALF if has_minimum else offset, top)
        _put_levels(q, y, levels_at, bits)

    return put


def _searched(shape: Shape) -> Any:
    """(x, q, y, lane, found): writes a block by what the search found."""
    _, bits, has_minimum = shape
    top, middle, levels_at = (1 << bits) - 1, 1 << bits - 1, 4 if has_minimum else 2

    @small
    def put(x, q, y, lane, found):
        put_half(y, 0, found[0][lane])
        if has_minimum:
            put_half(y, 2, found[1][lane])
        for j in range(BLOCK):
            if has_minimum:
                q[j] = np.uint8(found_level(x[j], top, found, lane, True))
            elif found[3][lane] != ZERO:
                q[j] = np.uint8(np.int32(level(x[j], found[3][lane], middle)) + middle)
            else:
                q[j] = np.uint8(0)
        _put_levels(q, y, levels_at, bits)

    return put


@small
def _load(source, importance, first, count, width, mean, x, w):
    """Sixteen blocks from ``first`` on, weighted; ``mean`` is the mean square of the row before, and of the last."""
    sigma = lane_floats()
    for lane in range(LANES):
        block = min(first + lane, count - 1)  # the last one again where there is no other
        at, column = source + block * BLOCK * 4, block * BLOCK % width
        if column == 0:
            mean = sum_of_squares(floats_at(at), width) / np.float32(width)
        sigma[lane] = mean
        load_lane(x, lane, floats_at(at), BLOCK)
        load_lane(w, lane, floats_at(importance + column * 4), BLOCK)
    importance_weights(x, w, BLOCK, sigma)
    return mean


def _searched_rows(shape: Shape) -> Any:
    size, bits, has_minimum = shape
    top, middle, put = (1 << bits) - 1, 1 << bits - 1, _searched(shape)

    @small
    def rows(source, importance, target, count, width):
        x, w, q, found = lane_values(), lane_values(), quants(), new_found()
        mean = ZERO
        for first in range(0, count, LANES):
            mean = _load(source, importance, first, count, width, mean, x, w)
            if has_minimum:
                search_affine(x, w, BLOCK, top, TRIES, False, True, found)
            else:
                search_scale(x, w, BLOCK, middle, found[0], found[3])
            for lane in range(min(LANES, count - first)):
                block = first + lane
                put(floats_at(source + block * BLOCK * 4), q, bytes_at(target + block * size), lane, found)

    return rows


def make_kernel(shape: Shape) -> Any:
    size, put, searched_rows = shape.bytes, _plain(shape), _searched_rows(shape)

    @kernel
    def quantise(source, importance, target, rows, width, tables):
        count = rows * width // BLOCK
        if importance != 0:
            searched_rows(source, importance, target, count, width)
            return
        x, q = values(), quants()
        for block in range(count):
            load(x, floats_at(source + block * BLOCK * 4), BLOCK)
            put(x, q, bytes_at(target + block * size))

    return quantise


KERNELS = {
    2: make_kernel(Shape(18, 4, False)),
    3: make_kernel(Shape(20, 4, True)),
    6: make_kernel(Shape(22, 5, False)),
    7: make_kernel(Shape(24, 5, True)),
}
