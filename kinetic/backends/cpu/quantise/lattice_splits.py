"""The best split of a sub-block's sorted values in three, for IQ1. Imported only by the build process.

The lowest values get -1, the middle ones 0, the highest 1, all of them plus or minus 1/8. With sums over the sorted
values, each of the splits has its best scale at once; the one that leaves the least error wins, the first of equals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kinetic.backends.cpu.quantise.memory import floats, ints, small
from kinetic.backends.cpu.quantise.numbers import INFINITE, ZERO

EIGHTH = np.float32(0.125)
LOWEST = np.float32(-3.4028234663852886e38)
UP = tuple(np.float32(level + 0.125) for level in (-1, 0, 1))
DOWN = tuple(np.float32(level - 0.125) for level in (-1, 0, 1))

S_SIZE, M_SIZE, HALF_SIZE = 32, 16, 8


def make_ranks(size: int) -> Any:
    """ranks(x, at, rank): int32 places of ``size`` values in ascending order, equal ones as they stand.

    ggml leaves equal ones to ``qsort``; that of glibc keeps their order.
    """

    new_keys = floats(size)

    @small
    def ranks(x, at, rank):
        keys = new_keys()
        for j in range(size):
            keys[j] = x[at + j] if x[at + j] == x[at + j] else INFINITE  # each rank is taken once, come what may
            rank[j] = np.int32(0)
        for i in range(size):
            key = keys[i]
            for j in range(size):
                before = (key < keys[j]) | ((key == keys[j]) & (np.int32(i) < np.int32(j)))
                rank[j] += np.int32(before)

    return ranks


ranks_s, ranks_m = make_ranks(S_SIZE), make_ranks(M_SIZE)
sums_s, sums_m = floats(S_SIZE + 1), floats(M_SIZE + 1)
places_s, places_m = ints(S_SIZE), ints(M_SIZE)


@small
def better(product, square, best):
    return square > ZERO and product * product > best * square


@small
def _score_s(products, squares, sum_x, sum_w, first, levels):
    """For each second boundary from ``first`` on: the sums of w * x * q and w * q * q."""
    low, middle, high = levels
    x_low, w_low = (sum_x[first] - sum_x[0]) * low, (sum_w[first] - sum_w[0]) * low * low
    for second in range(first, S_SIZE + 1):
        products[second] = x_low + (sum_x[second] - sum_x[first]) * middle + (sum_x[S_SIZE] - sum_x[second]) * high
        squares[second] = (
            w_low + (sum_w[second] - sum_w[first]) * middle * middle + (sum_w[S_SIZE] - sum_w[second]) * high * high
        )


@small
def split_s(x, w, at, rank):
    """Scale of 32 values from ``at`` on, how many get the lowest level, how many that or the middle one, and the 1/8.

    The first count is -1 if no split has a scale. rank int32 [32] gets the values' places.
    """
    order, sum_x, sum_w = places_s(), sums_s(), sums_s()
    up_products, up_squares, down_products, down_squares = sums_s(), sums_s(), sums_s(), sums_s()
    ranks_s(x, at, rank)
    for j in range(S_SIZE):
        order[rank[j]] = np.int32(j)
    sum_x[0], sum_w[0] = ZERO, ZERO
    for j in range(S_SIZE):
        i = at + order[j]
        sum_x[j + 1] = sum_x[j] + w[i] * x[i]
        sum_w[j + 1] = sum_w[j] + w[i]
    best, scale, low, middle, delta = LOWEST, ZERO, -1, -1, EIGHTH
    for first in range(S_SIZE + 1):
        _score_s(up_products, up_squares, sum_x, sum_w, first, UP)
        _score_s(down_products, down_squares, sum_x, sum_w, first, DOWN)
        for second in range(first, S_SIZE + 1):
            if better(up_products[second], up_squares[second], best):
                scale = up_products[second] / up_squares[second]
                best, low, middle, delta = scale * up_products[second], first, second, EIGHTH
            if better(down_products[second], down_squares[second], best):
                scale = down_products[second] / down_squares[second]
                best, low, middle, delta = scale * down_products[second], first, second, -EIGHTH
    return scale, low, middle, delta


CHOICES = 4
"""Signs of the 1/8 of two halves: ++, +-, -+, --."""
choices = floats(CHOICES)


@small
def _half_sums(order, x, w, at, half, sum_x, sum_w):
    """Sums over the sorted values of one half of 16, at every place of all."""
    sum_x[0], sum_w[0] = ZERO, ZERO
    for j in range(M_SIZE):
        i = at + order[j]
        mine = (order[j] >= HALF_SIZE) == (half == 1)
        sum_x[j + 1] = sum_x[j] + w[i] * x[i] if mine else sum_x[j]
        sum_w[j + 1] = sum_w[j] + w[i] if mine else sum_w[j]


@small
def _score_m(sum_x, sum_w, first, second, levels):
    """One half's sums of w * x * q and w * q * q: of the highest level for all, less what the others have less."""
    low, middle, high = levels
    product = sum_x[M_SIZE] * high - (sum_x[first] + sum_x[second])
    square = (
        sum_w[M_SIZE] * high * high
        + sum_w[first] * (low * low - middle * middle)
        + sum_w[second] * (middle * middle - high * high)
    )
    return product, square


@small
def split_m(x, w, at, rank):
    """Scale of 16 values from ``at`` on, the two counts as in ``split_s``, and which of ``CHOICES``."""
    order, products, squares = places_m(), choices(), choices()
    x_0, w_0, x_1, w_1 = sums_m(), sums_m(), sums_m(), sums_m()
    ranks_m(x, at, rank)
    for j in range(M_SIZE):
        order[rank[j]] = np.int32(j)
    _half_sums(order, x, w, at, 0, x_0, w_0)
    _half_sums(order, x, w, at, 1, x_1, w_1)
    best, scale, low, middle, choice = LOWEST, ZERO, -1, -1, -1
    for first in range(M_SIZE + 1):
        for second in range(first, M_SIZE + 1):
            up_0, up_square_0 = _score_m(x_0, w_0, first, second, UP)
            down_0, down_square_0 = _score_m(x_0, w_0, first, second, DOWN)
            up_1, up_square_1 = _score_m(x_1, w_1, first, second, UP)
            down_1, down_square_1 = _score_m(x_1, w_1, first, second, DOWN)
            products[0], squares[0] = up_0 + up_1, up_square_0 + up_square_1
            products[1], squares[1] = up_0 + down_1, up_square_0 + down_square_1
            products[2], squares[2] = down_0 + up_1, down_square_0 + up_square_1
            products[3], squares[3] = down_0 + down_1, down_square_0 + down_square_1
            for k in range(CHOICES):
                if better(products[k], squares[k], best):
                    scale = products[k] / squares[k]
                    best, low, middle, choice = scale * products[k], first, second, k
    return scale, low, middle, choice
