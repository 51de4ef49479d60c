"""The best entries of a row of logits, in an order that no sort routine can change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.errors import NonFinite

GROUP = 32
"""The k-th best of the maxima of disjoint groups is a lower bound for the k-th best of all; 32 ran fastest."""


def candidates(row: F32, k: int, floor: float) -> tuple[NDArray[np.int32], F32]:
    """Ids and values of at most ``k`` entries (0: no limit), by (value descending, id ascending); -0 equals +0.

    row float32 [V]. Left out are -inf (a token that must not be drawn) and
    everything below ``max - float32(floor)``, one float32 subtraction; an
    infinite ``floor`` leaves nothing else out. Returns int32 [n] and float32
    [n], the row's own bits, n >= 1. Raises NonFinite on a NaN or +inf, naming
    the lowest such id, and when every entry is -inf.
    """
    best = row.max(initial=-np.inf)
    if not np.isfinite(best):
        raise not_finite(row)
    with np.errstate(over="ignore"):
        threshold = max(best - np.float32(floor), np.finfo(np.float32).min)
    if 0 < k <= row.size // GROUP:
        maxima = row[: row.size // GROUP * GROUP].reshape(GROUP, -1).max(axis=0)
        threshold = max(threshold, np.partition(maxima, -k)[-k])
    return ordered(row, np.flatnonzero(row >= threshold), k)


def ordered(row: F32, ids: NDArray[np.integer], k: int) -> tuple[NDArray[np.int32], F32]:
    """The best ``k`` (0: all) of some entries of a row, and their values. Keys are distinct, so that any way of sorting
    gives the same, and integers, which sort fastest."""
    keys = _order(row, ids)
    keys.sort()
    best = (keys[: k or None] & 0xFFFFFFFF).astype(np.int32)
    return best, row[best]


def _order(row: F32, ids: NDArray[np.integer]) -> NDArray[np.int64]:
    """Distinct integers that sort as (value descending, id ascending), with the id in the low 32 bits."""
    bits = (row[ids] + np.float32(0)).view(np.int32)  # adding 0 turns -0 into +0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (~ascending).astype(np.int64) << 32 | ids


def not_finite(row: F32) -> NonFinite:
    """The error for a row that no token can be drawn from; names the lowest bad id."""
    bad = np.flatnonzero(~(row < np.inf))
    if bad.size == 0:
        return NonFinite("every logit is -inf, so no token can be drawn")
    return NonFinite(f"the logit of token {bad[0]} is {row[bad[0]]}, not a finite number")
