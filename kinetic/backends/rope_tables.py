"""Cosines and sines for rotary embeddings, computed once on the host and handed to every backend.

float64 with + - * only (no fma, no library sine), so every machine gets the
same bits; then rounded once to float32. Frequencies come from ``decimal``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Rope
from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32

F64 = NDArray[np.float64]

# pi/2 in pieces of 33 bits: k * piece is exact for k < 2^20 (the reduction of fdlibm's e_rem_pio2.c).
_TWO_OVER_PI = 0.6366197723675814
_PIO2 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
_PIO2_REST = 8.47842766036889956997e-32
_SHIFT = 6755399441055744.0  # 1.5 * 2^52

_SIN = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COS = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)

LARGEST_ANGLE = 1 << 20
"""Radians up to which ``sin_cos`` reduces exactly."""

_DIGITS = Context(prec=50)


_TWO_PI = Decimal("6.2831853071795864769252867665590057683943387987502")


@dataclass(frozen=True)
class Yarn:
    """Stretches only what turns slowly (Peng et al., arXiv:2309.00071). ``original``: the context before that.

    A pair that turns more often than ``fast_turns`` in it keeps its frequency, one that turns less often than
    ``slow_turns`` is stretched by the whole factor, those between by a part of it.
    """

    original: int
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    share: float = 1.0
    """Of its own frequency each pair keeps this much of what it would."""

    def kept(self, base: float, rotated: int) -> list[Decimal]:
        """The share of its own frequency that each pair keeps, 0 to 1."""
        low = max(Decimal(0), self._pair(base, rotated, self.fast_turns).to_integral_value(ROUND_FLOOR))
        high = min(Decimal(rotated - 1), self._pair(base, rotated, self.slow_turns).to_integral_value(ROUND_CEILING))
        span = max(Decimal("0.001"), high - low)
        shares = (_DIGITS.divide(Decimal(i) - low, span) for i in range(rotated // 2))
        kept = (_DIGITS.subtract(Decimal(1), min(Decimal(1), max(Decimal(0), share))) for share in shares)
        return [_DIGITS.multiply(share, Decimal(self.share)) for share in kept]

    def _pair(self, base: float, rotated: int, turns: float) -> Decimal:
        """The pair, as a fraction, that turns so often in the original context."""
        often = _DIGITS.divide(Decimal(self.original), _DIGITS.multiply(Decimal(turns), _TWO_PI))
        halves = _DIGITS.divide(_DIGITS.ln(often), _DIGITS.multiply(Decimal(2), _DIGITS.ln(Decimal(base))))
        return _DIGITS.multiply(Decimal(rotated), halves)


def yarn_magnitude(factor: float, attention_factor: float = 1.0) -> float:
    """``attention_factor * (1 + ln(factor) / 10)``, without the logarithm for factors up to 1. Rounded once."""
    tenth = _DIGITS.divide(_DIGITS.ln(Decimal(max(factor, 1.0))), Decimal(10))
    return float(_DIGITS.multiply(Decimal(attention_factor), _DIGITS.add(Decimal(1), tenth)))


def raised(factor: float, multiplier: float, attention_factor: float = 1.0) -> float:
    """``attention_factor * (1 + multiplier * ln(factor))``. Rounded once."""
    part = _DIGITS.multiply(Decimal(multiplier), _DIGITS.ln(Decimal(factor)))
    return float(_DIGITS.multiply(Decimal(attention_factor), _DIGITS.add(Decimal(1), part)))


def frequencies(
    base: float, rotated: int, divisors: tuple[float, ...] = (), factor: float = 1.0, yarn: Yarn | None = None
) -> tuple[float, ...]:
    """``base ** (-2 i / rotated) / (divisors[i] * factor)``, i < rotated / 2.

    With ``yarn``, ``1 / factor`` becomes ``(1 - kept[i]) / factor + kept[i]``.
    Rounded once to float64, from 50 decimal digits.
    """
    log = _DIGITS.ln(Decimal(base))
    kept = yarn.kept(base, rotated) if yarn else None
    out = []
    for i in range(rotated // 2):
        power = _DIGITS.exp(_DIGITS.divide(_DIGITS.multiply(log, Decimal(-2 * i)), Decimal(rotated)))
        if kept is not None:
            stretched = _DIGITS.divide(_DIGITS.subtract(Decimal(1), kept[i]), Decimal(factor))
            power = _DIGITS.multiply(power, _DIGITS.add(stretched, kept[i]))
        divisor = _DIGITS.multiply(Decimal(divisors[i]) if divisors else Decimal(1), Decimal(1 if yarn else factor))
        out.append(float(_DIGITS.divide(power, divisor)))
    return tuple(out)


def _polynomial(coefficients: tuple[float, ...], z: F64) -> F64:
    p = np.full_like(z, coefficients[0])
    for c in coefficients[1:]:
        p = p * z + c
    return p


def sin_cos(x: F64) -> tuple[F64, F64]:
    """Sine and cosine of x float64, |x| < 2^20, at most 1 ulp off."""
    k = (x * _TWO_OVER_PI + _SHIFT) - _SHIFT
    head = ((x - k * _PIO2[0]) - k * _PIO2[1]) - k * _PIO2[2]
    # What the three subtractions rounded away, recovered with exact steps.
    a = x - k * _PIO2[0]
    b = a - k * _PIO2[1]
    lost = ((a - b) - k * _PIO2[1]) + (((b - head) - k * _PIO2[2]) - k * _PIO2_REST)
    z = head * head
    sine = head + (head * z * _polynomial(_SIN, z) + lost)
    half = 0.5 * z
    w = 1.0 - half
    cosine = w + (((1.0 - w) - half) + (z * z * _polynomial(_COS, z) - head * lost))
    quadrant = k.astype(np.int64) & 3
    s = np.choose(quadrant, [sine, cosine, -sine, -cosine])
    c = np.choose(quadrant, [cosine, -sine, -cosine, sine])
    return s, c


def table(rope: Rope, start: int, count: int) -> tuple[F32, F32]:
    """cos, sin float32 [count, len(frequencies)] for positions start .. start + count - 1."""
    angles = np.arange(start, start + count, dtype=np.float64)[:, None] * np.array(rope.frequencies)
    s, c = sin_cos(angles)
    return (c * rope.magnitude).astype(np.float32), (s * rope.magnitude).astype(np.float32)


class Turned:
    """Cosines, then sines, of the positions of one rotation: of chunks of them that were asked for, and no others."""

    def __init__(self, rope: Rope) -> None:
        self._rope = rope
        self._there: set[int] = set()
        self._rows: F32 = np.zeros((0, 2 * len(rope.frequencies)), np.float32)

    def of(self, positions: Iterable[int]) -> F32:
        """float32 [more than the largest, 2 * pairs], of which the rows at ``positions`` are computed. It may be moved
        by the next call."""
        wanted = {position // CHUNK for position in positions}
        needed = (max(wanted) + 1) * CHUNK
        if needed > len(self._rows):
            grown = np.zeros((max(needed, 2 * len(self._rows)), self._rows.shape[1]), np.float32)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        for chunk in sorted(wanted - self._there):
            with default_rounding():
                rows = np.concatenate(table(self._rope, chunk * CHUNK, CHUNK), axis=1)
            self._rows[chunk * CHUNK : (chunk + 1) * CHUNK] = rows
            self._there.add(chunk)
        return self._rows
