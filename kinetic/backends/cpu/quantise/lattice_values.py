"""Weights, magnitudes and signs of a sub-block, and its first scale. Imported only by the build process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kinetic.backends.cpu.quantise.memory import bytes_, floats_at, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, nearest

SUPER = 256
"""Values of a super-block, which is a block of the format."""
SIGNED = 8
"""Values whose signs make a byte."""

ONE_BIT = np.int32(1)
STEP = np.float32(0.1)


@small
def weigh(x, at, importance, spread, part, size, w):
    """w[i] = importance * sqrt(spread + x^2) by the float32 at address ``importance``; if that is 0, part * spread + x^2.

    ``spread`` is a mean of squares.
    """
    if importance == 0:
        # The spread of huge values is infinite, and 0 times that is no number.
        least = part * spread if part > ZERO else ZERO
        for i in range(size):
            w[i] = least + x[at + i] * x[at + i]
    else:
        factor = floats_at(importance)
        for i in range(size):
            w[i] = factor[i] * np.float32(math.sqrt(spread + x[at + i] * x[at + i]))


@small
def roots(w, size, root):
    for i in range(size):
        root[i] = np.float32(math.sqrt(w[i]))


@small
def put_word(y, at, word, size):
    """The low ``size`` bytes of ``word``, the lowest first."""
    for i in range(size):
        y[at + i] = np.uint8((word >> (8 * i)) & 255)


def make_unsigned(size: int, even: bool) -> Any:
    """unsigned(source, at, w, x, signs) -> the largest of x, the magnitudes of ``size`` values from ``at`` on.

    signs int32 [size / 8]: sign bits of eight values. If ``even``, an odd number of them is made even by the
    value that matters least, whose x becomes negative.
    """

    @small
    def unsigned(source, at, w, x, signs):
        for group in range(size // SIGNED):
            signs[group] = _signs(source, at, w, x, group * SIGNED)
        most = x[0]
        for i in range(1, size):
            most = most if most > x[i] else x[i]
        return most

    @small
    def _signs(source, at, w, x, start):
        bits, count = np.int32(0), np.int32(0)
        for i in range(start, start + SIGNED):
            value = source[at + i]
            negative = np.int32(0) if value >= ZERO else ONE_BIT
            x[i] = -value if negative else value
            bits |= negative << np.int32(i - start)
            count += negative
        if even and count & ONE_BIT:
            i = _least(source, at, w, start)
            x[i] = -x[i]
            bits ^= ONE_BIT << np.int32(i - start)
        return np.int32(bits)

    return unsigned


@small
def _least(source, at, w, start):
    """Which of eight values from ``start`` on has the least weighted square; the first of equals."""
    found, least = start, w[start] * source[at + start] * source[at + start]
    for i in range(start + 1, start + SIGNED):
        square = w[i] * source[at + i] * source[at + i]
        if square < least:
            found, least = i, square
    return found


def make_uniform_scale(size: int, top: int) -> Any:
    """uniform_scale(x, w) -> the scale for which levels 0 .. top of ``size`` values x, of largest > 0, are near x / scale.

    ``make_qp_quants`` of ggml: levels are kept in bytes, so that those of negative values wrap around.
    """
    reach, rounds = 4, 5
    highest, levels = np.float32(top), bytes_(size)
    limit = np.int32(top)

    @small
    def level_of(value):
        level = nearest(value)
        return level if level < limit else limit

    @small
    def error(x, w, inverse):
        total, scale = ZERO, ONE / inverse
        for i in range(size):
            difference = x[i] - scale * np.float32(level_of(inverse * x[i]))
            total += w[i] * difference * difference
        return total

    @small
    def best_inverse(x, w, most):
        inverse = highest / most
        least, scale = ZERO, ONE / inverse
        for i in range(size):
            difference = x[i] - scale * np.float32(np.uint8(nearest(inverse * x[i]) & np.int32(255)))
            least += w[i] * difference * difference
        for step in range(-reach, reach + 1):
            near = (STEP * np.float32(step) + highest) / most
            made = error(x, w, near)
            if step != 0 and made < least:
                least, inverse = made, near
        return inverse

    @small
    def improved(x, w, level, product, square):
        """One round over the values: a level is changed if the fit gets better. Third result: whether one was."""
        changed = False
        for i in range(size):
            old = np.float32(level[i])
            without, rest = product - w[i] * x[i] * old, square - w[i] * old * old
            if without > ZERO and rest > ZERO:
                new = level_of(x[i] * rest / without)
                if new != np.int32(level[i]):
                    without += w[i] * x[i] * np.float32(new)
                    rest += w[i] * np.float32(new) * np.float32(new)
                    if without * without * square > product * product * rest:
                        level[i] = np.uint8(new & np.int32(255))
                        product, square, changed = without, rest, True
        return product, square, changed

    @small
    def uniform_scale(x, w, most):
        level, inverse = levels(), best_inverse(x, w, most)
        product, square = ZERO, ZERO
        for i in range(size):
            new = level_of(inverse * x[i])
            level[i] = np.uint8(new & np.int32(255))
            product += w[i] * x[i] * np.float32(new)
            square += w[i] * np.float32(new) * np.float32(new)
        for _ in range(rounds):
            product, square, changed = improved(x, w, level, product, square)
            if not changed:
                break
        return product / square if square > ZERO else ZERO

    return uniform_scale
