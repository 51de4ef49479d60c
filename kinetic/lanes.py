"""Sums of float64 in one order that is ours: element i goes to lane i mod 2,048, and the lanes fold in halves.

NumPy chooses the order of its own sums by version and processor, so they are not used. Each lane adds its elements
by rising index, and then lane j takes in lane j + n/2 for n = 2,048, 1,024 ... 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

LANES = 2048


def fold(lanes: F64) -> F64:
    """The lanes [R, LANES] of R sums added up: [R]. Destroys them."""
    n = LANES
    while n > 1:
        n //= 2
        lanes[:, :n] += lanes[:, n : 2 * n]
    return lanes[:, 0].copy()


def lane_sum(x: F64) -> float:
    """The sum of ``x`` float64 [n]; +0 of nothing."""
    lanes = np.zeros((1, LANES))
    for start in range(0, x.size, LANES):
        piece = x[start : start + LANES]
        lanes[0, : piece.size] += piece
    return float(fold(lanes)[0])
