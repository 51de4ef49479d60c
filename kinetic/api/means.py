"""Means of numbers that come in parts, and their uncertainties. Sums are exact and rounded once: order can't matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kinetic import softmax


class Estimate(NamedTuple):
    """A mean and its uncertainty (standard error)."""

    value: float
    uncertainty: float


class Total:
    """An exact sum: as many floats, of rising size and without common bits, as it takes.

    Source: Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997; ``math.fsum`` works so, and gives the same.
    """

    def __init__(self) -> None:
        self._parts: list[float] = []

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            rest = []
            for part in self._parts:
                total = value + part
                small, large = (value, part) if abs(value) < abs(part) else (part, value)
                if error := small - (total - large):
                    rest.append(error)
                value = total
            self._parts = [*rest, value]

    @property
    def value(self) -> float:
        return math.fsum(self._parts)


class Mean:
    """The mean of what was added so far. Asking for it takes as long after a million numbers as after one."""

    def __init__(self) -> None:
        self.count = 0
        self._sum, self._squares = Total(), Total()

    def add(self, values: Sequence[float]) -> None:
        self.count += len(values)
        self._sum.add(values)
        self._squares.add(value * value for value in values)

    @property
    def estimate(self) -> Estimate:
        """The uncertainty is the square root of the variance over (n - 1)."""
        middle = self._sum.value / self.count
        variance = self._squares.value / self.count - middle * middle
        return Estimate(middle, math.sqrt(variance / (self.count - 1)) if variance > 0 and self.count > 1 else 0.0)


def powered(log: Estimate) -> Estimate:
    """e to an estimate."""
    value = softmax.exp(log.value)
    return Estimate(value, value * log.uncertainty)
