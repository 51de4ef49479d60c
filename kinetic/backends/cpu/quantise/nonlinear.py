"""IQ4_NL and IQ4_XS: 4-bit levels that stand for sixteen fixed values, times a scale a block of 32.

The scale is searched: the largest value is mapped near the end of the fixed values in some ways, and the one wins whose
levels, with the best scale for them, leave the smallest error. IQ4_XS keeps the scales of eight blocks as integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kinetic.backends.cpu.quantise.lanes import LANES, fill, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats_at, kernel, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, nearest, put_half, within
from kinetic.backends.cpu.quantise.scale_search import TINY, largest
from kinetic.backends.cpu.quantise.weights import importance_weights, squares, sum_of_squares

BLOCK, SUPER = 32, 256
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
STEPS = 7
FACTOR_TOP = np.float32(32)

FIRST = np.float32(VALUES[0])
quants = bytes_(SUPER)


def _stairs(first: Any, rises: Sequence[Any]) -> Any:
    """x -> ``first`` and the rises of all stairs that are not above ``x``; stairs lie half-way between the values.

    ggml compares the distances to both values. These are exact where they are nearly equal, so the result is the same.
    """

    @small
    def height(x):
        return first

    for low, high, rise in zip(VALUES, VALUES[1:], rises, strict=False):
        height = _higher(height, np.float32((low + high) / 2), rise)
    return height


def _higher(below: Any, edge: Any, rise: Any) -> Any:
    """One more stair. A loop over them would keep LLVM from making vectors of blocks."""
    nothing = type(rise)(0)

    @small
    def height(x):
        return below(x) + (nothing if x < edge else rise)

    return height


_value = _stairs(FIRST, [np.float32(high - low) for low, high in pairwise(VALUES)])
_level = _stairs(np.int32(0), [np.int32(1)] * (len(VALUES) - 1))


@small
def _sums(x, w, inverse, products, sums):
    fill(products, ZERO)
    fill(sums, ZERO)
    for j in range(BLOCK):
        at = j * LANES
        for lane in range(LANES):
            q = _value(inverse[lane] * x[at + lane])
            weighted = w[at + lane] * q
            products[lane] = products[lane] + weighted * x[at + lane]
            sums[lane] = sums[lane] + weighted * q


@small
def _search(x, w, scale):
    """``x``, ``w`` float32 [32, 16] -> ``scale`` [16]."""
    value, size, inverse, best = lane_floats(), lane_floats(), lane_floats(), lane_floats()
    products, sums = lane_floats(), lane_floats()
    largest(x, BLOCK, value, size)
    for lane in range(LANES):
        inverse[lane] = ONE / (-value[lane] / FIRST)
    _sums(x, w, inverse, products, sums)
    for lane in range(LANES):
        scale[lane] = products[lane] / sums[lane] if sums[lane] > ZERO else ZERO
        best[lane] = scale[lane] * products[lane]
    for step in range(-STEPS, STEPS + 1):
        for lane in range(LANES):
            inverse[lane] = (np.float32(step) + FIRST) / value[lane]
        _sums(x, w, inverse, products, sums)
        for lane in range(LANES):
            product, total = products[lane], sums[lane]
            is_better = (total > ZERO) & (product * product > best[lane] * total)
            found = product / total
            scale[lane] = found if is_better else scale[lane]
            best[lane] = found * product if is_better else best[lane]
    for lane in range(LANES):
        scale[lane] = scale[lane] if size[lane] >= TINY else ZERO


@small
def _put_levels(v, q, y, at, inverse):
    """Two levels a byte, those of values 16 apart."""
    for j in range(BLOCK):
        q[j] = np.uint8(_level(inverse * v[j]))
    for j in range(16):
        y[at + j] = np.uint8(q[j] | q[j + 16] << 4)


@small
def _put_iq4_nl(source, q, y, scale, lane):
    put_half(y, 0, scale[lane])
    inverse = ONE / scale[lane] if scale[lane] != ZERO else ZERO
    _put_levels(floats_at(source), q, y, 2, inverse)


@small
def _put_iq4_xs(source, q, y, scale, lane):
    """Eight blocks: float16 scale, the upper 2 bits of eight integers in 16 bits, their lower 4, then levels."""
    most, size = ZERO, ZERO
    for i in range(8):
        is_larger = abs(scale[lane + i]) > size
        most = scale[lane + i] if is_larger else most
        size = abs(scale[lane + i]) if is_larger else size
    d = -most / FACTOR_TOP
    put_half(y, 0, d)
    inverse, high, low = ONE / d if d != ZERO else ZERO, 0, 0
    for i in range(8):
        factor = within(np.int32(-32), nearest(inverse * scale[lane + i]), np.int32(31))
        scaled = d * np.float32(factor)
        _put_levels(floats_at(source + i * BLOCK * 4), q, y, 8 + 16 * i, ONE / scaled if scaled != ZERO else ZERO)
        high |= (factor + 32 >> 4) << 2 * i
        low |= (factor + 32 & 15) << 4 * i
    for byte in range(2):
        y[2 + byte] = np.uint8(high >> 8 * byte & 255)
    for byte in range(4):
        y[4 + byte] = np.uint8(low >> 8 * byte & 255)


def make_kernel(length: int, size: int, put: Any) -> Any:
    """``length`` values are written at a time, ``size`` bytes; ``put`` writes them."""
    blocks = length // BLOCK
    batch = LANES // blocks

    @small
    def load(source, importance, width, unit, lane, x, w, sigma):
        at = source + unit * length * 4
        mean = sum_of_squares(floats_at(at), length) * np.float32(2 / length) if importance != 0 else ZERO
        for i in range(blocks):
            load_lane(x, lane + i, floats_at(at + i * BLOCK * 4), BLOCK)
            sigma[lane + i] = mean
            if importance != 0:
                load_lane(w, lane + i, floats_at(importance + (unit * length % width + i * BLOCK) * 4), BLOCK)

    @kernel
    def quantise(source, importance, target, rows, width, tables):
        x, w, q, sigma, scale = lane_values(), lane_values(), quants(), lane_floats(), lane_floats()
        count = rows * width // length
        for first in range(0, count, batch):
            for part in range(batch):  # the last one again where there is no other
                load(source, importance, width, min(first + part, count - 1), part * blocks, x, w, sigma)
            if importance != 0:
                importance_weights(x, w, BLOCK, sigma)
            else:
                squares(x, w, BLOCK)
            _search(x, w, scale)
            for part in range(min(batch, count - first)):
                unit = first + part
                put(source + unit * length * 4, q, bytes_at(target + unit * size), scale, part * blocks)

    return quantise


KERNELS = {20: make_kernel(BLOCK, 18, _put_iq4_nl), 23: make_kernel(SUPER, 136, _put_iq4_xs)}
