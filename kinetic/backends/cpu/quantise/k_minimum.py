"""Q2_K, Q4_K and Q5_K: 256 values in blocks of 16 or 32, each with a small integer scale and minimum.

Without importance the largest scale and minimum are mapped to the largest integers; with it the integers are
searched, weighted by how much importance their blocks have.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kinetic.backends.cpu.quantise.affine_search import TRIES, found_level, new_found, search_affine
from kinetic.backends.cpu.quantise.k_bytes import (
    write_four_bits,
    write_nibbles,
    write_one_bit,
    write_six_bits,
    write_two_bits,
)
from kinetic.backends.cpu.quantise.lanes import LANES, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats_at, ints, kernel, small
from kinetic.backends.cpu.quantise.numbers import ZERO, float_of_half, nearest, put_half, within
from kinetic.backends.cpu.quantise.small_search import BYTE, search_positive
from kinetic.backends.cpu.quantise.weights import importance_weights, sum_of_squares

SUPER = 256

quants, lane_ints = bytes_(SUPER), ints(LANES)


@small
def _plain_weights(x, w, length):
    """The root of the block's mean square + |x|."""
    mean = lane_floats()
    for lane in range(LANES):
        mean[lane] = ZERO
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            mean[lane] = mean[lane] + x[at + lane] * x[at + lane]
    for lane in range(LANES):
        mean[lane] = math.sqrt(mean[lane] / np.float32(length))
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            w[at + lane] = mean[lane] + abs(x[at + lane])


@small
def integer_factors(values, count, top, factors):
    """Integers in 0 .. top for values of which the largest becomes ``top``. -> the largest, 0 if none is above 0."""
    largest = ZERO
    for i in range(count):
        largest = values[i] if values[i] > largest else largest
    inverse = np.float32(top) / largest if largest > ZERO else ZERO
    for i in range(count):
        factor = np.int32(nearest(inverse * values[i]) & BYTE)
        factors[i] = factor if factor < np.int32(top) else np.int32(top)
    return largest


@small
def _write_levels(v, q, at, length, top, d, minimum):
    for j in range(length):
        q[at + j] = np.uint8(within(np.int32(0), nearest((v[at + j] + minimum) / d), np.int32(top)))


@small
def _q2_k_factors(scales, minima, y):
    write_nibbles(scales, minima, y)


@small
def _q2_k_levels(q, y):
    write_two_bits(q, y, 16)


@small
def _q4_k_factors(scales, minima, y):
    write_six_bits(scales, minima, y, 4)


@small
def _q4_k_levels(q, y):
    write_four_bits(q, y, 16)


@small
def _q5_k_factors(scales, minima, y):
    for i in range(8):  # here, not in Q4_K, ggml bounds what is no level at all
        scales[i] = min(scales[i], np.int32(63))
        minima[i] = min(minima[i], np.int32(63))
    write_six_bits(scales, minima, y, 4)


@small
def _q5_k_levels(q, y):
    write_one_bit(q, y, 16, 4)
    write_four_bits(q, y, 48)


class Shape(NamedTuple):
    """What tells one of these formats from the others."""

    bytes: int
    length: int
    """Values of a block."""
    top: int
    factor_top: int
    d_at: int
    tries: tuple[np.float32, np.float32, int]
    """Without importance; see ``search_affine``."""
    is_absolute: bool
    """Whether weights and errors without importance are magnitudes."""
    spread: np.float32
    """What the mean square is multiplied by in the weights with importance."""


def _loader(shape: Shape) -> Any:
    """(source, importance, width, block, lane, x, w, sigma): a super-block to the lanes from ``lane`` on."""
    length, spread, blocks = shape.length, shape.spread, SUPER // shape.length

    @small
    def load(source, importance, width, block, lane, x, w, sigma):
        at = source + block * SUPER * 4
        mean = spread * sum_of_squares(floats_at(at), SUPER) / np.float32(SUPER) if importance != 0 else ZERO
        for i in range(blocks):
            load_lane(x, lane + i, floats_at(at + i * length * 4), length)
            sigma[lane + i] = mean
            if importance != 0:
                load_lane(w, lane + i, floats_at(importance + (block * SUPER % width + i * length) * 4), length)

    return load


def _searcher(shape: Shape) -> Any:
    """(importance, x, w, sigma, found)."""
    length, top, tries, is_absolute = shape.length, shape.top, shape.tries, shape.is_absolute

    @small
    def search(importance, x, w, sigma, found):
        if importance != 0:
            importance_weights(x, w, length, sigma)
            search_affine(x, w, length, top, TRIES, False, True, found)
            return
        if is_absolute:
            for j in range(length * LANES):
                w[j] = abs(x[j])
        else:
            _plain_weights(x, w, length)
        search_affine(x, w, length, top, tries, is_absolute, False, found)

    return search


def _finisher(shape: Shape, put_factors: Any, put_levels: Any) -> Any:
    """(importance, v, y, q, lane, found): writes a super-block."""
    length, top, factor_top, d_at, blocks = shape.length, shape.top, shape.factor_top, shape.d_at, SUPER // shape.length

    @small
    def factors_of(importance, values, weights, factors):
        if importance != 0:
            return search_positive(values, weights, blocks, factor_top, factors)
        return integer_factors(values, blocks, factor_top, factors) / np.float32(factor_top)

    @small
    def finish(importance, v, y, q, lane, found):
        values, lows, weights, scales, minima = lane_floats(), lane_floats(), lane_floats(), lane_ints(), lane_ints()
        for i in range(blocks):
            values[i], lows[i], weights[i] = found[0][lane + i], -found[1][lane + i], found[2][lane + i]
        d = float_of_half(put_half(y, d_at, factors_of(importance, values, weights, scales)))
        d_min = float_of_half(put_half(y, d_at + 2, factors_of(importance, lows, weights, minima)))
        put_factors(scales, minima, y)
        for i in range(blocks):
            scale, at = d * np.float32(scales[i]), i * length
            if scale != ZERO:
                _write_levels(v, q, at, length, top, scale, d_min * np.float32(minima[i]))
                continue
            for j in range(length):
                q[at + j] = np.uint8(found_level(v[at + j], top, found, lane + i, importance != 0))
        put_levels(q, y)

    return finish


def make_kernel(shape: Shape, put_factors: Any, put_levels: Any) -> Any:
    load, search, finish = _loader(shape), _searcher(shape), _finisher(shape, put_factors, put_levels)
    size, blocks = shape.bytes, SUPER // shape.length
    batch = LANES // blocks

    @kernel
    def quantise(source, importance, target, rows, width, tables):
        x, w, q, sigma, found = lane_values(), lane_values(), quants(), lane_floats(), new_found()
        count = rows * width // SUPER
        for first in range(0, count, batch):
            for part in range(batch):  # the last one again where there is no other
                load(source, importance, width, min(first + part, count - 1), part * blocks, x, w, sigma)
            search(importance, x, w, sigma, found)
            for part in range(min(batch, count - first)):
                block = first + part
                v, y = floats_at(source + block * SUPER * 4), bytes_at(target + block * size)
                finish(importance, v, y, q, part * blocks, found)

    return quantise


TENTH = np.float32(0.1)

KERNELS = {
    10: make_kernel(
        Shape(84, 16, 3, 15, 80, (np.float32(-0.5), TENTH, 16), True, np.float32(1)), _q2_k_factors, _q2_k_levels
    ),
    12: make_kernel(
        Shape(144, 32, 15, 63, 0, (np.float32(-1), TENTH, 21), False, np.float32(2)), _q4_k_factors, _q4_k_levels
    ),
    13: make_kernel(
        Shape(176, 32, 31, 63, 0, (np.float32(-0.5), TENTH, 16), False, np.float32(2)), _q5_k_factors, _q5_k_levels
    ),
}
