"""The scale and minimum of a block: value is about scale * level + minimum, level in 0 .. top, minimum <= 0.

The range of the values is divided evenly first. Then each of some steps makes levels with a slightly different
scale, fits scale and minimum to them (weighted least squares), and keeps the fit if its error is the smallest yet;
the next steps begin from the minimum that was kept.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.lanes import LANES, copy, fill, lane_floats, lane_values
from kinetic.backends.cpu.quantise.memory import small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, nearest, whole_float, within

TRIES = (np.float32(-0.9), np.float32(0.05), 37)
"""The tries of ``search_affine`` where there is an importance."""


@small
def wrapping_level(v, top):
    """Whole float32 in 0 .. top. Of 2^22 and above it is what ggml's trick to round leaves."""
    return np.float32(within(np.int32(0), nearest(v), np.int32(top)))


@small
def bounded_level(v, top):
    """Whole float32 in 0 .. top, 0 for what is no number."""
    bounded = v if v < np.float32(top) else np.float32(top)
    return whole_float(bounded) if v > ZERO else ZERO


@small
def _deviation(fit, x, is_absolute):
    difference = fit - x
    return abs(difference) if is_absolute else difference * difference


@small
def _ranges(x, w, length, low, high, weights, values):
    """Per lane the smallest value and the largest, and the sums of weights and of weighted values."""
    for lane in range(LANES):
        low[lane] = high[lane] = x[lane]
        weights[lane] = w[lane]
        values[lane] = w[lane] * x[lane]
    for j in range(1, length):
        at = j * LANES
        for lane in range(LANES):
            v, weight = x[at + lane], w[at + lane]
            low[lane] = v if v < low[lane] else low[lane]
            high[lane] = v if v > high[lane] else high[lane]
            weights[lane] = weights[lane] + weight
            values[lane] = values[lane] + weight * v
    for lane in range(LANES):
        low[lane] = ZERO if low[lane] > ZERO else low[lane]


@small
def _fill_levels(x, length, top, inverse, low, levels, is_bounded):
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            v = inverse[lane] * (x[at + lane] - low[lane])
            levels[at + lane] = bounded_level(v, top) if is_bounded else wrapping_level(v, top)


@small
def _moments(x, w, length, levels, sum_l, sum_l2, sum_xl):
    fill(sum_l, ZERO)
    fill(sum_l2, ZERO)
    fill(sum_xl, ZERO)
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            q = levels[at + lane]
            weighted = w[at + lane] * q
            sum_l[lane] = sum_l[lane] + weighted
            sum_l2[lane] = sum_l2[lane] + weighted * q
            sum_xl[lane] = sum_xl[lane] + weighted * x[at + lane]


@small
def _errors(x, w, length, levels, scale, low, is_absolute, error):
    fill(error, ZERO)
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            v = x[at + lane]
            fit = scale[lane] * levels[at + lane] + low[lane]
            error[lane] = error[lane] + w[at + lane] * _deviation(fit, v, is_absolute)


@small
def _fit(weights, values, sum_l, sum_l2, sum_xl, determinant, fitted, fitted_low):
    """Scale and minimum of least squares. A minimum above zero becomes zero."""
    for lane in range(LANES):
        total, sum_x = weights[lane], values[lane]
        sl, sl2, sxl = sum_l[lane], sum_l2[lane], sum_xl[lane]
        d = total * sl2 - sl * sl
        scale = (total * sxl - sum_x * sl) / d
        low = (sl2 * sum_x - sl * sxl) / d
        is_above = low > ZERO
        determinant[lane] = d
        fitted[lane] = sxl / sl2 if is_above else scale
        fitted_low[lane] = ZERO if is_above else low


@small
def _keep_better(state, found, inverse, fitted, fitted_low, determinant, error):
    low, _, best = state
    scale, _, _, chosen, chosen_low, is_later = found
    for lane in range(LANES):
        is_better = (determinant[lane] > ZERO) & (error[lane] < best[lane])
        chosen[lane] = inverse[lane] if is_better else chosen[lane]
        chosen_low[lane] = low[lane] if is_better else chosen_low[lane]
        is_later[lane] = ONE if is_better else is_later[lane]
        best[lane] = error[lane] if is_better else best[lane]
        scale[lane] = fitted[lane] if is_better else scale[lane]
        low[lane] = fitted_low[lane] if is_better else low[lane]


@small
def _divide_evenly(x, w, length, top, is_absolute, state, found, levels):
    """The first try."""
    low, high, best = state
    scale, _, _, chosen, chosen_low, is_later = found
    for lane in range(LANES):
        chosen[lane] = np.float32(top) / (high[lane] - low[lane])
        scale[lane] = ONE / chosen[lane]
    copy(chosen_low, low)
    fill(is_later, ZERO)
    _fill_levels(x, length, top, chosen, low, levels, False)
    _errors(x, w, length, levels, scale, low, is_absolute, best)


@small
def search_affine(x, w, length, top, tries, is_absolute, is_bounded, found):
    """``x``, ``w`` float32 [length, 16] -> ``found``, pointers to float32 [16] (see ``new_found``).

    ``tries``: (first, step, count); first + step * i is added to ``top`` for the i-th try.
    """
    first, step, count = tries
    scale, low, weights, chosen, _, _ = found
    high, values, best, levels = lane_floats(), lane_floats(), lane_floats(), lane_values()
    is_flat, start_low = lane_floats(), lane_floats()
    sum_l, sum_l2, sum_xl, inverse = lane_floats(), lane_floats(), lane_floats(), lane_floats()
    fitted, fitted_low, determinant, error = lane_floats(), lane_floats(), lane_floats(), lane_floats()
    state = (low, high, best)
    _ranges(x, w, length, low, high, weights, values)
    for lane in range(LANES):
        is_flat[lane] = ONE if high[lane] <= low[lane] else ZERO
    copy(start_low, low)
    _divide_evenly(x, w, length, top, is_absolute, state, found, levels)
    for i in range(count):
        wanted = first + step * np.float32(i) + np.float32(top)
        for lane in range(LANES):
            inverse[lane] = wanted / (high[lane] - low[lane])
        _fill_levels(x, length, top, inverse, low, levels, is_bounded)
        _moments(x, w, length, levels, sum_l, sum_l2, sum_xl)
        _fit(weights, values, sum_l, sum_l2, sum_xl, determinant, fitted, fitted_low)
        _errors(x, w, length, levels, fitted, fitted_low, is_absolute, error)
        _keep_better(state, found, inverse, fitted, fitted_low, determinant, error)
    for lane in range(LANES):
        is_none = is_flat[lane] > ZERO
        scale[lane] = ZERO if is_none else scale[lane]
        chosen[lane] = ZERO if is_none else chosen[lane]
        low[lane] = start_low[lane] if is_none else low[lane]


@small
def found_level(x, top, found, lane, is_bounded):
    """int32: the level that the search gave ``x``."""
    _, _, _, chosen, chosen_low, is_later = found
    v = chosen[lane] * (x - chosen_low[lane])
    if is_bounded and is_later[lane] > ZERO:
        return np.int32(bounded_level(v, top))
    return np.int32(wrapping_level(v, top))


@small
def new_found():
    """Scale, minimum (as it is, at most zero), sum of weights; and what made the levels: the inverse of a scale,
    what was subtracted, and whether a later try made them (1) or the first (0)."""
    return lane_floats(), lane_floats(), lane_floats(), lane_floats(), lane_floats(), lane_floats()
