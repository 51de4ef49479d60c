"""Binary32 rounding with whole numbers: a check of the arithmetic that cannot be wrong in the same way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

LARGEST = Fraction(2) ** 128 - Fraction(2) ** 104


def round_f32(value: Fraction) -> np.float32:
    """The nearest binary32, ties to even, subnormals kept; infinite from halfway past the largest on."""
    if value == 0:
        return np.float32(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(magnitude / unit) * unit  # Python rounds fractions to even
    number = np.inf if rounded > LARGEST else float(rounded)
    return np.float32(number if value > 0 else -number)


def fused(a: float, b: float, c: float) -> np.float32:
    """``a * b + c`` of finite numbers, rounded once. The sign of a zero result is not modelled."""
    return round_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
