"""Log-probabilities in float64: exp, ln, and sums over a vocabulary, with the same bits on every machine.

Libraries choose their exp and log by processor, and NumPy the order of its sums, so neither is used. Over
arrays only + - * of float64, shifts of integers and a table are; NumPy rounds each operation once and never
fuses two. Single numbers go through ``decimal``, which is integer arithmetic.

A sum over a row [V] has the order of ``kinetic.lanes``, so it depends on no other row. The exp's table has as many
steps as there are lanes. A sum is reckoned on one thread: NumPy's short steps leave a second one nothing to do.

Accuracy: ``exp_in_place`` within 2 units in the last place of float64 (tests/unit/test_softmax.py), ``ln`` and
``exp`` correctly rounded.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32
from kinetic.errors import NonFinite
from kinetic.lanes import F64, LANES, fold

I64 = NDArray[np.int64]

ROWS = 8
"""Rows at a time: what is computed for them stays in the second level of caches."""

LOWEST = -700.0
"""Below this an exponent counts as this: e^-700 adds nothing to a sum that is at least 1."""

LARGEST = 710.0
"""e to the power of more is beyond float64, and soon beyond ``decimal``."""

DIGITS = Context(prec=40)


def _constants() -> tuple[float, float, float]:
    """Steps a unit of x; ln(2) / 2048 in two parts, of which the first has 32 bits."""
    with localcontext(DIGITS):
        step = Decimal(2).ln() / LANES
        high = float(int(step * (1 << 43))) / float(1 << 43)
        return float(1 / step), high, float(step - Decimal(high))


STEPS, STEP_HIGH, STEP_LOW = _constants()
MAGIC = 1.5 * float(1 << 52)
"""Adding it rounds to a whole number, which then stands in the low bits of the sum."""


@lru_cache(maxsize=1)
def _table() -> I64:
    """Bits of 2^(j / 2048), int64 [2048]."""
    with localcontext(DIGITS):
        step = (Decimal(2).ln() / LANES).exp()
        powers = [Decimal(1)]
        for _ in range(LANES - 1):
            powers.append(powers[-1] * step)
    return np.array([float(power) for power in powers]).view(np.int64)


class Workspace:
    """Memory for ``exp_in_place`` of up to [ROWS, LANES] numbers. One for each thread."""

    def __init__(self) -> None:
        self.steps = np.empty(ROWS * LANES)
        self.rest = np.empty(ROWS * LANES)
        self.places = np.empty(ROWS * LANES, np.int64)
        self.scales = np.empty(ROWS * LANES, np.int64)


def exp_in_place(x: F64, work: Workspace) -> F64:
    """``x`` becomes exp(x): contiguous, at most ROWS * LANES numbers up to 700, and those below -700 as -700.

    x = n ln(2) / 2048 + r with n whole and |r| <= ln(2) / 4096; exp(x) = 2^(n / 2048) (1 + r + r^2 / 2 + r^3 / 6).
    """
    flat = x.reshape(-1)
    steps, rest = work.steps[: flat.size], work.rest[: flat.size]
    places, scales = work.places[: flat.size], work.scales[: flat.size]
    np.maximum(flat, LOWEST, out=flat)
    np.multiply(flat, STEPS, out=steps)
    steps += MAGIC
    whole = steps.view(np.int64)
    np.bitwise_and(whole, LANES - 1, out=places)
    np.take(_table(), places, out=scales, mode="clip")
    np.subtract(whole, places, out=places)
    places <<= 41  # from 2,048 steps to the exponent's place; what MAGIC left above is shifted out
    scales += places
    steps -= MAGIC
    np.multiply(steps, STEP_HIGH, out=rest)
    np.subtract(flat, rest, out=rest)
    steps *= STEP_LOW
    rest -= steps
    np.multiply(rest, 1 / 6, out=steps)
    steps += 0.5
    steps *= rest
    steps += 1.0
    steps *= rest
    powers = scales.view(np.float64)
    np.multiply(powers, steps, out=flat)
    flat += powers
    return x


def ln(x: float) -> float:
    """Natural logarithm of a positive number."""
    return float(DIGITS.ln(Decimal(x)))


def exp(x: float) -> float:
    """e to the x; infinity where that is beyond float64."""
    return math.inf if x > LARGEST else float(DIGITS.exp(Decimal(x)))


def log_sums(logits: F32) -> F64:
    """ln of the sum of exp over each row of ``logits`` float32 [n, V]: float64 [n]. Raises NonFinite."""
    largest = logits.max(axis=1, initial=-np.inf)  # exact: a choice, not a sum
    if not np.isfinite(largest).all():
        raise NonFinite("a row of logits holds a NaN or an infinity, so it gives no probabilities")
    tops, work, sums = largest.astype(np.float64), Workspace(), []
    with default_rounding():
        for first in range(0, len(logits), ROWS):
            rows = slice(first, first + ROWS)
            sums += _exp_sums(logits[rows], tops[rows], work).tolist()
    return np.array([top + ln(total) for top, total in zip(tops.tolist(), sums, strict=True)])


def _exp_sums(rows: F32, tops: F64, work: Workspace) -> F64:
    """Sum of exp(x - top) over each row."""
    lanes = np.zeros((len(rows), LANES))
    for start in range(0, rows.shape[1], LANES):
        shifted = rows[:, start : start + LANES] - tops[:, None]
        lanes[:, : shifted.shape[1]] += exp_in_place(shifted, work)
    return fold(lanes)
