"""What leaves candidates out: top-n-sigma, typical sampling and XTC. Where they sum, sums are exact or in our order.

Weights are those of ``kinetic.sampling``: int64, 2^40 for the best candidate left, falling.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.lanes import lane_sum

I64 = NDArray[np.int64]

UNIT = np.float32(1 << 35)
"""Distances as integers have this many units: 28 of them need 40 bits."""

PIECE = 20
"""Bits of the pieces that are multiplied: 2^23 products of two such pieces add up within an int64."""


def share(p: float, total: int) -> int:
    """The smallest integer that is at least ``p * total``, without rounding: a binary32 is a ratio of integers."""
    numerator, denominator = p.as_integer_ratio()
    return -(-numerator * total // denominator)


def top_n_sigma(row: F32, n: float) -> F32:
    """``row`` [V] with -inf for every logit below ``largest - n * deviation``, reckoned in binary64.

    The deviation is that of all logits but -inf. A row that holds NaN or +inf, or nothing else than -inf, is
    returned as it is: no token can be drawn from it.
    """
    finite = np.isfinite(row)
    largest = float(row.max(initial=-np.inf))
    if not math.isfinite(largest):
        return row
    count = int(finite.sum())  # exact: a count
    mean = lane_sum(np.where(finite, row, 0).astype(np.float64)) / count
    off = np.where(finite, row.astype(np.float64) - mean, 0)
    deviation = math.sqrt(lane_sum(off * off) / count)
    return np.where(row.astype(np.float64) < largest - n * deviation, np.float32(-np.inf), row)


def units(distance: F32) -> I64:
    """``trunc(-distance * 2^35)``: distances float32 [n] from -28 to 0 as integers below 2^40. The product is exact."""
    return (-distance * UNIT).astype(np.int64)


def exact_dot(a: I64, b: I64) -> int:
    """The sum of ``a * b``, integers [n] from 0 to 2^40, n up to 2^22."""
    total = 0
    for place, high in ((PIECE, a >> PIECE), (0, a & ((1 << PIECE) - 1))):
        for other, low in ((PIECE, b >> PIECE), (0, b & ((1 << PIECE) - 1))):
            total += int((high * low).sum()) << (place + other)  # exact: integers
    return total


def typical(distance: F32, weights: I64, p: float) -> NDArray[np.bool_]:
    """Which candidates typical sampling keeps: bool [n].

    Source: Meister et al., "Locally typical sampling" (2022). How far a candidate's surprise is from the expected
    one is how far its distance is from the mean distance: the logarithm of the sum falls out. The nearest come
    first, in candidate order where they are equally near, until their weights exceed ``p`` of all.
    """
    kept = np.zeros(weights.size, np.bool_)
    alive = int(np.count_nonzero(weights))  # those without weight stand last
    distances, weights = units(distance[:alive]), weights[:alive]
    total = int(weights.sum())  # exact: integers
    mean = exact_dot(weights, distances) // total
    nearest = np.argsort(np.abs(distances - mean), kind="stable")
    numerator, denominator = p.as_integer_ratio()
    most = numerator * total // denominator
    sums = weights[nearest].cumsum()  # exact: integers
    kept[nearest[: 1 + int(sums.searchsorted(most, side="right"))]] = True
    return kept


def xtc(weights: I64, threshold: float) -> slice:
    """Which candidates XTC keeps where it applies: without those over the threshold, except the last of them.

    A candidate without weight is not over it, were it 0.

    Source: p-e-w's proposal (oobabooga/text-generation-webui, pull request 6335).
    """
    total = int(weights.sum())  # exact: integers
    over = int(np.count_nonzero(weights >= max(share(threshold, total), 1)))
    return slice(max(over - 1, 0), None)
