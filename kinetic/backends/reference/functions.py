"""The scalar functions of the arithmetic, elementwise in NumPy. Only + - * / sqrt, comparisons and integer work.

NumPy's own exp, tanh and power are never used: their bits depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32

MAGIC = np.float32(12582912.0)
"""1.5 * 2^23: adding it leaves round-to-nearest-even of a small number in the low bits."""

MAGIC_BITS = np.int32(0x4B400000)

LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH = np.float32(-0.693359375)
LN2_LOW = np.float32(2.12194440e-4)
# As in expf of the Cephes library (Moshier).
EXP_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
EXP_MIN = np.float32(-104.0)
EXP_MAX = np.float32(88.72)
EXP_ZERO_BELOW = np.float32(-87.0)
"""Weights of softmax below exp(-87) are 0, so that no subnormal ever reaches a sum there."""

SMALLEST_SUM = np.float32(2.0**-14)
"""Weights of experts are divided by no less: the smallest normal float16."""

# As in tanhf of the Cephes library (Moshier).
TANH_POLYNOMIAL_BELOW = np.float32(0.625)
TANH_COEFFICIENTS = tuple(
    np.float32(c) for c in (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
)

GELU_CUBIC = np.float32(0.044715)
GELU_SLOPE = np.float32(1.5957691216057308)
"""2 * sqrt(2 / pi)."""

LOG1P_COEFFICIENTS = tuple(
    np.float32(c) for c in (1.3433775305747986e-1, 1.4116978645324707e-1, 2.000383585691452e-1, 3.3333319425582886e-1)
)
"""Of ``atanh(s) = s + s * z * p(z)``, z = s * s, for s up to 1/3."""

SWIGLU_SLOPE = np.float32(1.702)
SWIGLU_LIMIT = np.float32(7.0)

SMALLEST_STATE = np.float32(2.0**-100)
"""Elements of a recurrent state nearer to 0 become +0, so that no subnormal stays in one."""


def fma32(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """``a * b + c`` with one rounding, elementwise float32.

    The product is exact in float64; the sum is rounded to odd there, which
    makes the final rounding to float32 correct (Boldo and Melquiond, 2008).
    """
    with np.errstate(all="ignore"):
        p = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        c64 = np.asarray(c, np.float64)
        s = np.asarray(p + c64)
        back = s - p
        error = (p - (s - back)) + (c64 - back)
        bits = s.view(np.int64)
        inexact = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
        toward = np.where((error > 0) == (s > 0), np.int64(1), np.int64(-1))
        odd = np.where(inexact, bits + toward, bits).view(np.float64)
        return np.asarray(odd).astype(np.float32)


def exp32(x: F32) -> F32:
    """exp with at most 1 ulp of error: Cody-Waite reduction, degree-6 polynomial, 2^n in two exact steps."""
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float32)
        clamped = np.where(x < EXP_MIN, EXP_MIN, x)
        clamped = np.where(clamped > EXP_MAX, EXP_MAX, clamped)
        shifted = fma32(clamped, LOG2_E, MAGIC)
        n = shifted - MAGIC
        r = fma32(n, LN2_LOW, fma32(n, LN2_HIGH, clamped))
        p = np.full_like(r, EXP_COEFFICIENTS[0])
        for c in EXP_COEFFICIENTS[1:]:
            p = fma32(p, r, c)
        y = fma32(p, r * r, r) + np.float32(1)
        exponent = shifted.view(np.int32) - MAGIC_BITS
        half = exponent >> 1
        y = y * _power_of_two(half) * _power_of_two(exponent - half)
        return np.where(x > EXP_MAX, np.float32(np.inf), y)


def _power_of_two(n: NDArray[np.int32]) -> F32:
    return ((n + np.int32(127)) << np.int32(23)).view(np.float32)


def silu(x: F32) -> F32:
    """``x / (1 + exp(-x))``."""
    with np.errstate(all="ignore"):
        return x / (np.float32(1) + exp32(-x))


def gelu(x: F32) -> F32:
    """The tanh form of GELU, written as ``x / (1 + exp(-2 sqrt(2/pi) x (1 + 0.044715 x^2)))``."""
    with np.errstate(all="ignore"):
        u = (GELU_SLOPE * x) * fma32(np.full_like(x, GELU_CUBIC), x * x, np.float32(1))
        return x / (np.float32(1) + exp32(-u))


def sigmoid(x: F32) -> F32:
    """``1 / (1 + exp(-x))``."""
    with np.errstate(all="ignore"):
        return np.float32(1) / (np.float32(1) + exp32(-x))


def softplus(x: F32) -> F32:
    """``log(1 + exp(x))``, at most 3 ulp off; from 20 on it is x.

    Computed as ``max(x, 0) + log1p(y)``, ``y = exp(-abs(x))``, and ``log1p(y) = 2 atanh(y / (2 + y))``: no digit of
    a small y is lost.
    """
    with np.errstate(all="ignore"):
        y = exp32(-np.abs(x))
        s = y / (np.float32(2) + y)
        z = s * s
        p = np.full_like(z, LOG1P_COEFFICIENTS[0])
        for c in LOG1P_COEFFICIENTS[1:]:
            p = fma32(p, z, c)
        twice = s + s
        return np.where(x > 0, x, np.float32(0)) + fma32(twice * z, p, twice)


def relu_sqr(x: F32) -> F32:
    """``r * r`` with r = 0 if x < 0, else x."""
    with np.errstate(all="ignore"):
        r = np.where(x < 0, np.float32(0), x)
        return r * r


def tanh(x: F32) -> F32:
    """An odd polynomial of degree 11 below 0.625, else ``1 - 2 / (1 + exp(2 |x|))`` with the sign of x."""
    with np.errstate(all="ignore"):
        magnitude = np.abs(x)
        square = x * x
        p = np.full_like(square, TANH_COEFFICIENTS[0])
        for c in TANH_COEFFICIENTS[1:]:
            p = fma32(p, square, c)
        small = fma32(p * square, x, x)
        large = np.float32(1) - np.float32(2) / (np.float32(1) + exp32(magnitude + magnitude))
        return np.where(magnitude < TANH_POLYNOMIAL_BELOW, small, np.copysign(large, x))


def softcap(x: F32, cap: float) -> F32:
    """``cap * tanh(x / cap)``; an infinity stays one."""
    with np.errstate(all="ignore"):
        limit = np.float32(cap)
        return np.where(np.isinf(x), x, limit * tanh(x / limit))


def softmax(x: F32) -> F32:
    """Over the last axis: weights ``exp(x - max)``, 0 below exp(-87), divided by their ``strided_sum``."""
    with np.errstate(all="ignore"):
        numbers = np.where(np.isnan(x), np.float32(-np.inf), x)
        difference = x - numbers.max(axis=-1, keepdims=True)
        weights: F32 = np.where(difference < EXP_ZERO_BELOW, np.float32(0), exp32(difference))
        total: F32 = strided_sum(weights)[..., None]
        return np.divide(weights, total, dtype=np.float32)


def swiglu_oai(gate: F32, up: F32) -> F32:
    """``g / (1 + exp(-(1.702 * g))) * (u + 1)``: g is ``gate`` where that is not above 7, u is ``up`` within +-7."""
    with np.errstate(all="ignore"):
        g = np.where(gate > SWIGLU_LIMIT, SWIGLU_LIMIT, gate)
        u = np.where(up > SWIGLU_LIMIT, SWIGLU_LIMIT, np.where(up < -SWIGLU_LIMIT, -SWIGLU_LIMIT, up))
        return g / (np.float32(1) + exp32(-(SWIGLU_SLOPE * g))) * (u + np.float32(1))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "sigmoid": sigmoid, "relu_sqr": relu_sqr}


def _times_up(activation: Callable[[F32], F32]) -> Callable[[F32, F32], F32]:
    return lambda gate, up: activation(gate) * up


GATES = {name: _times_up(activation) for name, activation in ACTIVATIONS.items()} | {"swiglu_oai": swiglu_oai}
"""What a gated block makes of both sides."""


def tree_sum16(lanes: F32) -> F32:
    """Sum of 16 partial sums, lanes [..., 16]: i + (i + 8), then + 4, + 2, + 1."""
    width = 16
    while width > 1:
        width //= 2
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]


def strided_sum(x: F32) -> F32:
    """Sum over the last axis: element i is added to partial i mod 16 in ascending order, then the tree."""
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for start in range(0, x.shape[-1], 16):
        part = x[..., start : start + 16]
        lanes[..., : part.shape[-1]] += part
    return tree_sum16(lanes)


def strided_sum_of_squares(x: F32) -> F32:
    """Like ``strided_sum`` of the squares, each added with one fma."""
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for start in range(0, x.shape[-1], 16):
        part = x[..., start : start + 16]
        lanes[..., : part.shape[-1]] = fma32(part, part, lanes[..., : part.shape[-1]])
    return tree_sum16(lanes)
