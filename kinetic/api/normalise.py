"""The length of a vector made 1, or another measure of it: docs/NUMERICS.md, "Embeddings"."""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.lanes import lane_sum

NOTHING, LARGEST, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
"""As llama.cpp numbers them: not at all; to the range of int16; by the sum of absolute values; to length 1. Greater
numbers p are p-norms."""

INT16 = 32760.0
MOST = 64
"""The greatest p."""


def normalise(rows: F32, kind: int) -> F32:
    """Each of ``rows`` float32 [n, d] divided by its norm. A row of zeros stays one. Raises UsageError."""
    if not NOTHING <= kind <= MOST:
        raise UsageError(f"there is no normalisation {kind}: give a number from -1 to {MOST}", name="NORMALISATION")
    if kind == NOTHING:
        return rows
    with default_rounding():
        return np.stack([_row(row.astype(np.float64), kind) for row in rows])


def cosines(vectors: Sequence[F32]) -> list[list[float]]:
    """Cosine similarity of each vector float32 [d] with each, in binary64; 0 where one is all zeros, or 1 both."""
    with default_rounding():
        wide = [vector.astype(np.float64) for vector in vectors]
        norms = [float(np.sqrt(lane_sum(x * x))) for x in wide]
        return [
            [lane_sum(x * y) / (a * b) if a and b else float(a == b) for y, b in zip(wide, norms, strict=True)]
            for x, a in zip(wide, norms, strict=True)
        ]


def _row(x: NDArray[np.float64], kind: int) -> F32:
    norm = _norm(np.abs(x), kind)
    return (x / norm).astype(np.float32) if norm > 0 else np.zeros(len(x), np.float32)


def _norm(x: NDArray[np.float64], kind: int) -> float:
    """Of absolute values, which are float32 numbers, so that their squares are exact."""
    if kind == LARGEST:
        return float(x.max()) / INT16
    if kind == TAXICAB:
        return lane_sum(x)
    if kind == EUCLIDEAN:
        return float(np.sqrt(lane_sum(x * x)))
    largest = float(x.max())
    if largest == 0:
        return 0.0
    x = x / largest
    powers = x
    for _ in range(kind - 1):
        powers = powers * x
    with decimal.localcontext(decimal.Context(prec=40, rounding=decimal.ROUND_HALF_EVEN)):
        root = (decimal.Decimal(lane_sum(powers)).ln() / kind).exp()
    return float(root) * largest
