"""How much each value's error counts in a search: from its size and, if there is one, its column's importance."""

from __future__ import annotations

import math

from kinetic.backends.cpu.quantise.lanes import LANES
from kinetic.backends.cpu.quantise.memory import small
from kinetic.backends.cpu.quantise.numbers import ZERO


@small
def sum_of_squares(v, count):
    total = ZERO
    for j in range(count):
        total += v[j] * v[j]
    return total


@small
def importance_weights(x, w, length, sigma):
    """importance * sqrt(sigma + x^2), per lane its own sigma; ``w`` holds the importance before."""
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            v = x[at + lane]
            w[at + lane] = w[at + lane] * math.sqrt(sigma[lane] + v * v)


@small
def squares(x, w, length):
    for j in range(length * LANES):
        w[j] = x[j] * x[j]


@small
def sums_of_lanes(w, length, total):
    for lane in range(LANES):
        total[lane] = ZERO
    for j in range(length):
        at = j * LANES
        for lane in range(LANES):
            total[lane] = total[lane] + w[at + lane]
