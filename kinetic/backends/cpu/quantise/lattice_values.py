"""Weights, magnitudes and signs of a sub-block. Imported only by the build process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kinetic.backends.cpu.quantise.memory import floats_at, small
from kinetic.backends.cpu.quantise.numbers import ZERO

SUPER = 256
"""Values of a super-block, which is a block of the format."""
SIGNED = 8
"""Values whose signs make a byte."""

ONE_BIT = np.int32(1)


@small
def weigh(x, at, importance, spread, part, size, w):
    """w[i] = importance[i] * sqrt(spread + x[i]^2), or part * spread + x[i]^2 if the address ``importance`` is 0.

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
