"""One scale for the scales (or the minima) of a super-block: value is about scale * level, level in 0 .. top."""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.memory import small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, nearest
from kinetic.backends.cpu.quantise.scale_search import TINY

STEPS, STEP = 4, np.float32(0.1)
ROUNDS = 5
BYTE = np.int32(255)


@small
def _at_most(level, top):
    return level if level < np.int32(top) else np.int32(top)


@small
def _error(x, w, count, inverse, top, is_bounded):
    scale, error = ONE / inverse, ZERO
    for i in range(count):
        level = nearest(inverse * x[i])
        # ggml bounds the levels of all tries but the first, and keeps those in a byte.
        level = _at_most(level, top) if is_bounded else np.int32(level & BYTE)
        difference = x[i] - scale * np.float32(level)
        error += (w[i] * difference) * difference
    return error


@small
def _best_inverse(x, w, count, top, largest):
    inverse = np.float32(top) / largest
    best = _error(x, w, count, inverse, top, False)
    for step in range(-STEPS, STEPS + 1):
        if step == 0:
            continue
        near = (STEP * np.float32(step) + np.float32(top)) / largest
        error = _error(x, w, count, near, top, True)
        inverse = near if error < best else inverse
        best = error if error < best else best
    return inverse


@small
def _improve(x, w, count, top, levels, products, squares):
    """Change levels one by one while that makes the error smaller. -> the new sums, and whether any changed."""
    changed = False
    for i in range(count):
        weight, old = w[i], np.float32(levels[i])
        product = products - (weight * x[i]) * old
        square = squares - (weight * old) * old
        if product > ZERO and square > ZERO:
            level = _at_most(nearest(x[i] * square / product), top)
            if level != levels[i]:
                new = np.float32(level)
                product += (weight * x[i]) * new
                square += (weight * new) * new
                if product * product * squares > products * products * square:
                    levels[i] = np.int32(level & BYTE)
                    products, squares, changed = product, square, True
    return products, squares, changed


@small
def search_positive(x, w, count, top, levels):
    """``x``, ``w`` float32 [count] -> the scale; ``levels`` int32 [count]."""
    largest = ZERO
    for i in range(count):
        largest = largest if largest > x[i] else x[i]
    if largest < TINY:
        for i in range(count):
            levels[i] = np.int32(0)
        return ZERO
    inverse = _best_inverse(x, w, count, top, largest)
    products, squares = ZERO, ZERO
    for i in range(count):
        level = _at_most(nearest(inverse * x[i]), top)
        levels[i] = np.int32(level & BYTE)
        products += (w[i] * x[i]) * np.float32(level)
        squares += (w[i] * np.float32(level)) * np.float32(level)
    for _ in range(ROUNDS):
        products, squares, changed = _improve(x, w, count, top, levels, products, squares)
        if not changed:
            break
    return products / squares if squares > ZERO else ZERO
