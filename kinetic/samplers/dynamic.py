"""Dynamic temperature: the surer the model is, the lower the temperature. Reckoned in decimal, 40 digits.

Source: kalomaze's proposal, with llama.cpp's formula. ``decimal`` rounds its ln and exp correctly, on every machine.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np

from kinetic.bits import F32
from kinetic.samplers.cuts import I64, exact_dot, units

DIGITS = Context(prec=40, traps=[])
ONE = Decimal(1)


def dynamic_temperature(distance: F32, weights: I64, temperature: float, spread: float, exponent: float) -> np.float32:
    """``low + (high - low) * share^exponent``, share the candidates' entropy by the largest that so many can have.

    low is ``temperature - spread``, or 0, and high ``temperature + spread``, both float32.
    """
    low = max(np.float32(temperature) - np.float32(spread), np.float32(0))
    high = np.float32(temperature) + np.float32(spread)
    with localcontext(DIGITS):
        power = _power(entropy_share(distance, weights), Decimal(exponent))
        found = Decimal(float(low)) + (Decimal(float(high)) - Decimal(float(low))) * power
    return np.float32(float(found))


def entropy_share(distance: F32, weights: I64) -> Decimal:
    """Entropy of the weights by ln n, from 0 to 1: ``(ln(total / weights[0]) + mean distance) / ln n``."""
    alive = int(np.count_nonzero(weights))  # those without weight stand last, and count in n
    total = Decimal(int(weights.sum()))  # exact: integers
    with localcontext(DIGITS):
        mean = Decimal(exact_dot(weights[:alive], units(distance[:alive]))) / (total * (1 << 35))
        entropy = (total / int(weights[0])).ln() + mean
        return min(max(entropy / Decimal(weights.size).ln(), Decimal(0)), ONE)


def _power(share: Decimal, exponent: Decimal) -> Decimal:
    if not exponent or share == 1:
        return ONE
    return (exponent * share.ln()).exp() if share else Decimal(0)
