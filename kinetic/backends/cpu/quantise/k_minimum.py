"""Q2_K, Q4_K and Q5_K: 256 values in blocks of 16 or 32, each with a small integer scale and minimum.

Without importance the largest scale and minimum are mapped to the largest integers; with it the integers are
searched, weighted by how much importance their blocks have.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kinetic.backends.cpu.quantise.affine_search import found_level, new_found, search_affine
from kinetic.backends.cpu.quantise.lanes import LANES, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats_at, ints, kernel, small
from kinetic.backends.cpu.quantise.numbers import ZERO, float_of_half, nearest, put_half, within
from kinetic.backends.cpu.quantise.small_search import BYTE, search_positive

SUPER = 256

quants, lane_ints = bytes_(SUPER), ints(LANES)


@small
def importance_weights(x, w, length, sigma):
    """importance * sqrt(sigma + x^2), per lane its own sigma; ``w`` holds the importance before."""
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            v = x[at + lane]
            w[at + lane] = w[at + lane] * math.sqrt(sigma[lane] + v * v)


@small
def sum_of_squares(v, count):
    total = ZERO
    for j in range(count):
        total += v[j] * v[j]
    return total


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
def write_two_bits(q, y, at):
    """Four levels a byte, those of values 32 apart."""
    for half in range(2):
        for j in range(32):
            a = 128 * half + j
            y[at + 32 * half + j] = np.uint8(q[a] | q[a + 32] << 2 | q[a + 64] << 4 | q[a + 96] << 6)


@small
def _write_four_bits(q, y, at):
    """Two levels a byte, those of values 32 apart."""
    for part in range(4):
        for j in range(32):
            low, high = q[64 * part + j], q[64 * part + 32 + j]
            y[at + 32 * part + j] = np.uint8((low & 15) | (high & 15) << 4)


@small
def _write_fifth_bits(q, y, at):
    for j in range(32):
        bits = 0
        for part in range(8):
            bits |= (q[32 * part + j] >> 4) << part
        y[at + j] = np.uint8(bits)


@small
def _write_six_bit_factors(scales, minima, y, at):
    """Eight pairs of 6 bits in 12 bytes: four whole pairs whose upper bits hold those of the other four."""
    for i in range(4):
        scale, minimum = scales[i + 4], minima[i + 4]
        y[at + i] = np.uint8((scales[i] & 63) | (scale >> 4) << 6)
        y[at + 4 + i] = np.uint8((minima[i] & 63) | (minimum >> 4) << 6)
        y[at + 8 + i] = np.uint8((scale & 15) | (minimum & 15) << 4)


@small
def _write_q2_k(q, scales, minima, y):
    for i in range(16):
        y[i] = np.uint8(scales[i] | minima[i] << 4)
    write_two_bits(q, y, 16)


@small
def _write_q4_k(q, scales, minima, y):
    _write_six_bit_factors(scales, minima, y, 4)
    _write_four_bits(q, y, 16)


@small
def _write_q5_k(q, scales, minima, y):
    _write_six_bit_factors(scales, minima, y, 4)
    _write_fifth_bits(q, y, 16)
    _write_four_bits(q, y, 48)


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


TRIES = (np.float32(-0.9), np.float32(0.05), 37)
"""With importance."""


def make_kernel(shape: Shape, write: Any) -> Any:
    size, length, top, factor_top, d_at, tries, is_absolute, spread = shape
    blocks = SUPER // length
    batch = LANES // blocks

    @small
    def load(source, importance, width, block, lane, x, w, sigma):
        """A super-block to the lanes from ``lane`` on."""
        at = source + block * SUPER * 4
        mean = spread * sum_of_squares(floats_at(at), SUPER) / np.float32(SUPER) if importance != 0 else ZERO
        for i in range(blocks):
            load_lane(x, lane + i, floats_at(at + i * length * 4), length)
            sigma[lane + i] = mean
            if importance != 0:
                load_lane(w, lane + i, floats_at(importance + (block * SUPER % width + i * length) * 4), length)

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
        for i in range(blocks):
            scale = d * np.float32(scales[i])
            if scale != ZERO:
                _write_levels(v, q, i * length, length, top, scale, d_min * np.float32(minima[i]))
                continue
            for j in range(length):
                q[i * length + j] = np.uint8(found_level(v[i * length + j], top, found, lane + i, importance != 0))
        write(q, scales, minima, y)

    @kernel
    def quantise(source, importance, target, rows, width, tables):
        x, w, q, sigma, found = lane_values(), lane_values(), quants(), lane_floats(), new_found()
        count = rows * width // SUPER
        for first in range(0, count, batch):
            for part in range(batch):  # the last one twice if there is no other
                load(source, importance, width, min(first + part, count - 1), part * blocks, x, w, sigma)
            search(importance, x, w, sigma, found)
            for part in range(batch):
                block = min(first + part, count - 1)
                v, y = floats_at(source + block * SUPER * 4), bytes_at(target + block * size)
                finish(importance, v, y, q, part * blocks, found)

    return quantise


TENTH = np.float32(0.1)

KERNELS = {
    10: make_kernel(Shape(84, 16, 3, 15, 80, (np.float32(-0.5), TENTH, 16), True, np.float32(1)), _write_q2_k),
    12: make_kernel(Shape(144, 32, 15, 63, 0, (np.float32(-1), TENTH, 21), False, np.float32(2)), _write_q4_k),
    13: make_kernel(Shape(176, 32, 31, 63, 0, (np.float32(-0.5), TENTH, 16), False, np.float32(2)), _write_q5_k),
}
