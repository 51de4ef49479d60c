"""The scale that IQ2_XXS starts from: that of levels 0 .. 4 at equal distances. Imported only by the build process.

``make_qp_quants`` of ggml. Levels are kept in bytes, so that those of negative values wrap around.
"""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.memory import bytes_, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, nearest

SIZE = 32
"""Values of a sub-block."""
TOP, HIGHEST = np.int32(4), np.float32(4)
STEP, REACH, ROUNDS = np.float32(0.1), 4, 5

new_levels = bytes_(SIZE)


@small
def level_of(value):
    level = nearest(value)
    return level if level < TOP else TOP


@small
def error(x, w, inverse):
    """Weighted squares of what levels at scale 1 / inverse leave of x."""
    total, scale = ZERO, ONE / inverse
    for i in range(SIZE):
        difference = x[i] - scale * np.float32(level_of(inverse * x[i]))
        total += w[i] * difference * difference
    return total


@small
def first_error(x, w, inverse):
    """The same with levels in bytes."""
    total, scale = ZERO, ONE / inverse
    for i in range(SIZE):
        difference = x[i] - scale * np.float32(np.uint8(nearest(inverse * x[i]) & np.int32(255)))
        total += w[i] * difference * difference
    return total


@small
def best_inverse(x, w, most):
    """Of the inverse scales around HIGHEST / most the one with the least error."""
    inverse = HIGHEST / most
    least = first_error(x, w, inverse)
    for step in range(-REACH, REACH + 1):
        near = (STEP * np.float32(step) + HIGHEST) / most
        made = error(x, w, near)
        if step != 0 and made < least:
            least, inverse = made, near
    return inverse


@small
def improve(x, w, level, product, square):
    """Change each level that makes the fit better. The new sums of w * x * level and w * level^2; whether any was."""
    changed = False
    for i in range(SIZE):
        old = np.float32(level[i])
        products, squares = product - w[i] * x[i] * old, square - w[i] * old * old
        if products > ZERO and squares > ZERO:
            new = level_of(x[i] * squares / products)
            if new != np.int32(level[i]):
                products += w[i] * x[i] * np.float32(new)
                squares += w[i] * np.float32(new) * np.float32(new)
                if products * products * square > product * product * squares:
                    level[i] = np.uint8(new & np.int32(255))
                    product, square, changed = products, squares, True
    return product, square, changed


@small
def uniform_scale(x, w, most):
    """x float32 [32], ``most`` > 0 the largest; w their weights."""
    level, inverse = new_levels(), best_inverse(x, w, most)
    product, square = ZERO, ZERO
    for i in range(SIZE):
        new = level_of(inverse * x[i])
        level[i] = np.uint8(new & np.int32(255))
        product += w[i] * x[i] * np.float32(new)
        square += w[i] * np.float32(new) * np.float32(new)
    for _ in range(ROUNDS):
        product, square, changed = improve(x, w, level, product, square)
        if not changed:
            break
    return product / square if square > ZERO else ZERO
