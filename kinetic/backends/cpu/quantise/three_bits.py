"""Q3_K: 256 values in 16 blocks, each with a 6-bit signed scale, and one float16 for all scales.

Without importance the levels of a block are changed one by one while that lowers its squared error.
With it the scale is searched, and so is the scale of the scales.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.k_bytes import write_one_bit, write_two_bits
from kinetic.backends.cpu.quantise.lanes import LANES, fill, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats_at, ints, kernel, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, float_of_half, nearest, put_half, within
from kinetic.backends.cpu.quantise.scale_search import TINY, largest, level, search_one, search_scale
from kinetic.backends.cpu.quantise.weights import importance_weights, squares, sum_of_squares, sums_of_lanes

SUPER, BLOCK, BYTES, TOP = 256, 16, 110, 4
LOW_AT, SCALES_AT, D_AT = 32, 96, 108
FACTOR_TOP = 32
ROUNDS = 5

quants, factors_of_blocks = bytes_(SUPER), ints(LANES)


@small
def _improve(x, w, levels, products, sums):
    """Change levels one by one while that makes the error smaller. -> how many changed."""
    changed = np.int32(0)
    for j in range(BLOCK):
        at = j * LANES
        for lane in range(LANES):
            v, weight, old = x[at + lane], w[at + lane], levels[at + lane]
            product = products[lane] - (weight * v) * old
            square = sums[lane] - (weight * old) * old
            new = np.float32(within(np.int32(-TOP), nearest(v * square / product), np.int32(TOP - 1)))
            is_usable = (product > ZERO) & (new != old)
            product = product + (weight * v) * new
            square = square + (weight * new) * new
            is_better = product * product * sums[lane] > products[lane] * products[lane] * square
            is_better = is_usable & (square > ZERO) & is_better
            levels[at + lane] = new if is_better else old
            products[lane] = product if is_better else products[lane]
            sums[lane] = square if is_better else sums[lane]
            changed = np.int32(changed + np.int32(is_better))
    return changed


@small
def _refine(x, w, levels, scale):
    """Levels from the largest value, then refined; ``w`` are squares. A zero block has scale 0 and levels -4."""
    value, size, products, sums = lane_floats(), lane_floats(), lane_floats(), lane_floats()
    largest(x, BLOCK, value, size)
    fill(products, ZERO)
    fill(sums, ZERO)
    for j in range(BLOCK):
        at = j * LANES
        for lane in range(LANES):
            v, weight = x[at + lane], w[at + lane]
            q = level(v, np.float32(-TOP) / value[lane], TOP)
            levels[at + lane] = q
            products[lane] = products[lane] + (weight * v) * q
            sums[lane] = sums[lane] + (weight * q) * q
    for _ in range(ROUNDS):
        if _improve(x, w, levels, products, sums) == 0:
            break
    for lane in range(LANES):
        found = products[lane] / sums[lane] if sums[lane] > ZERO else ZERO
        scale[lane] = found if size[lane] >= TINY else ZERO
    for j in range(BLOCK):
        at = j * LANES
        for lane in range(LANES):
            levels[at + lane] = levels[at + lane] if size[lane] >= TINY else np.float32(-TOP)


@small
def _search(x, w, levels, scale):
    """The same with weights."""
    chosen = lane_floats()
    search_scale(x, w, BLOCK, TOP, scale, chosen)
    for j in range(BLOCK):
        at = j * LANES
        for lane in range(LANES):
            found = level(x[at + lane], chosen[lane], TOP)
            levels[at + lane] = found if chosen[lane] != ZERO else np.float32(-TOP)


@small
def _scaled_factors(scale, factors):
    """The largest scale becomes -32. -> the scale of the scales."""
    most, size = ZERO, ZERO
    for lane in range(LANES):
        is_larger = abs(scale[lane]) > size
        most = scale[lane] if is_larger else most
        size = abs(scale[lane]) if is_larger else size
    inverse = np.float32(-FACTOR_TOP) / most if most != ZERO else ZERO
    for lane in range(LANES):
        # ggml keeps the integer in a byte before it is bounded.
        factor = np.int32(np.int32(nearest(inverse * scale[lane]) << np.int32(24)) >> np.int32(24))
        factor = within(np.int32(-FACTOR_TOP), factor, np.int32(FACTOR_TOP - 1))
        factors[lane] = factor + FACTOR_TOP if most != ZERO else np.int32(0)
    return ONE / inverse if most != ZERO else ZERO


@small
def _put_factors(factors, y):
    """Sixteen integers of 6 bits: the lower four of two in a byte, then the upper two of four."""
    for i in range(8):
        y[SCALES_AT + i] = np.uint8((factors[i] & 15) | (factors[i + 8] & 15) << 4)
    for i in range(4):
        low, high = (factors[i] >> 4) | (factors[i + 4] >> 4) << 2, (factors[i + 8] >> 4) | (factors[i + 12] >> 4) << 2
        y[SCALES_AT + 8 + i] = np.uint8(low | high << 4)


@small
def _put_levels(v, y, q, levels, factors, d):
    for lane in range(LANES):
        scale, at = d * np.float32(np.int32(factors[lane] - FACTOR_TOP)), lane * BLOCK
        for j in range(BLOCK):
            q[at + j] = np.uint8(np.int32(levels[j * LANES + lane]) + TOP)
        if scale != ZERO:
            for j in range(BLOCK):
                q[at + j] = np.uint8(within(np.int32(-TOP), nearest(v[at + j] / scale), np.int32(TOP - 1)) + TOP)
    write_one_bit(q, y, 0, 2)
    write_two_bits(q, y, LOW_AT)


@kernel
def q3_k(source, importance, target, rows, width, tables):
    x, w, levels, q = lane_values(), lane_values(), lane_values(), quants()
    scale, sigma, total, factors = lane_floats(), lane_floats(), lane_floats(), factors_of_blocks()
    for block in range(rows * width // SUPER):
        at, y = source + block * SUPER * 4, bytes_at(target + block * BYTES)
        for lane in range(LANES):
            load_lane(x, lane, floats_at(at + lane * BLOCK * 4), BLOCK)
        if importance == 0:
            squares(x, w, BLOCK)
            _refine(x, w, levels, scale)
            d = _scaled_factors(scale, factors)
        else:
            fill(sigma, np.float32(2) * sum_of_squares(floats_at(at), SUPER) / np.float32(SUPER))
            for lane in range(LANES):
                load_lane(w, lane, floats_at(importance + (block * SUPER % width + lane * BLOCK) * 4), BLOCK)
            importance_weights(x, w, BLOCK, sigma)
            sums_of_lanes(w, BLOCK, total)
            _search(x, w, levels, scale)
            d = search_one(scale, total, LANES, FACTOR_TOP, factors)
        _put_factors(factors, y)
        _put_levels(floats_at(at), y, q, levels, factors, float_of_half(put_half(y, D_AT, d)))


KERNELS = {11: q3_k}
