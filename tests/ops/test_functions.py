"""The reference's own functions against mathematics: exact fractions, 50-digit decimals, bit patterns one by one."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from kinetic.backends.base import Attention, Rope
from kinetic.backends.reference import functions
from kinetic.backends.reference.functions import exp32, fma32, strided_sum
from kinetic.backends.reference.quantise import SMALLEST, quantise
from kinetic.backends.rope_tables import Yarn, frequencies, sin_cos, table, yarn_magnitude
from kinetic.bits import bf16_to_f32, f16_to_f32, f32_to_f16
from tests.support.backends import inputs, rows_of, run_both, same
from tests.support.blocks import any_floats, integers, normals, uniforms, words
from tests.support.exact import fused, round_f32

# --- fma ---


def triples():
    """Random bits, near cancellations, ties, and results among the subnormals."""
    a, b, c = any_floats(60, 3, 4000)
    near = normals(61, 3, 2000)
    sums = [(a, b, c), (near[0], near[1], -(near[0] * near[1])), (near[0], near[1], near[2] * np.float32(2.0**25))]
    tiny = (near[0] * np.float32(2.0**-70), near[1] * np.float32(2.0**-70), near[2] * np.float32(2.0**-149))
    # Products halfway between two binary32, with a whisper added or taken that binary64 cannot hold beside them.
    odd = np.float32(1) + (integers(62, 0, 2**11, 1000) * 2.0**-11 + 2.0**-12).astype(np.float32)
    whisper = np.where(uniforms(63, 1000) < 0.5, np.float32(2.0**-100), np.float32(-(2.0**-100)))
    ties = (odd, np.full_like(odd, 1.0 + 2.0**-12), whisper)
    return [np.concatenate(parts) for parts in zip(*sums, tiny, ties, strict=True)]


def test_fma_is_rounded_once():
    a, b, c = triples()
    found = fma32(a, b, c)
    checked = 0
    for x, y, z, result in zip(a, b, c, found, strict=True):
        if np.isfinite([x, y, z]).all():
            expected = fused(x, y, z)
            assert result == expected, (x, y, z)
            checked += 1
    assert checked > 10000
    with np.errstate(all="ignore"):
        separately = (a * b) + c
    assert np.count_nonzero(separately != found) > 2000  # the cases do tell a fused step from two


def test_fma_of_what_is_not_finite():
    nan, inf, one = np.float32(np.nan), np.float32(np.inf), np.float32(1)
    assert np.isnan(fma32(inf, np.float32(0), one))
    assert np.isnan(fma32(inf, one, -inf))
    assert np.isnan(fma32(nan, one, one))
    assert fma32(inf, one, one) == inf
    large = np.float32(np.finfo(np.float32).max)
    assert fma32(large, one, large) == inf
    assert fma32(large, np.float32(2), -large) == large


# --- exp and what is built on it ---


def ulps(found, exact):
    """Distance in units of the last place of binary32 at the exact value; that of the subnormals below 2^-126."""
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 1e-300))), -126) - 23)
    return np.abs(found.astype(np.float64) - exact) / unit


def test_exp_is_within_one_ulp():
    steps = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([steps, (uniforms(64, 200_000) - np.float32(0.54)) * np.float32(192)])
    x = x[(x > -87) & (x < 88.7)]
    assert ulps(exp32(x), np.exp(x.astype(np.float64))).max() < 1.0


def test_exp_at_its_ends():
    with np.errstate(all="ignore"):
        x = np.array([-np.inf, -200, -104, -103.9, -88, 0, -0.0, 88.72, 88.721, 89, np.inf], np.float32)
        y = exp32(x)
    assert y[5] == y[6] == 1
    assert np.isinf(y[8:]).all()
    assert np.isfinite(y[:8]).all()
    assert y[0] == y[1] == y[2] <= 1.4e-45
    assert 0 < y[4] < 1.2e-38  # a subnormal, not flushed
    assert np.isnan(exp32(np.array([np.nan], np.float32)))[0]


@pytest.mark.parametrize("name, bound", [("silu", 3e-7), ("gelu", 3e-6)])
def test_activations_are_near_their_definitions(name, bound):
    x = (uniforms(65, 100_000) - np.float32(0.5)) * np.float32(40)
    wide = x.astype(np.float64)
    u = wide if name == "silu" else 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    exact = wide / (1 + np.exp(-u))
    error = np.abs(functions.ACTIVATIONS[name](x) - exact)
    assert (error <= bound * np.maximum(np.abs(exact), 0.03 * np.abs(wide))).all()


def test_swiglu_oai_is_near_its_definition():
    gate, up = ((uniforms(seed, 20_000) - np.float32(0.5)) * np.float32(40) for seed in (67, 68))
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    exact = g / (1 + np.exp(-1.702 * g)) * (u + 1)
    error = np.abs(functions.swiglu_oai(gate, up) - exact)
    assert (error <= 1e-6 * np.maximum(np.abs(exact), 0.1 * np.abs(g))).all()


def test_strided_sum_has_sixteen_partial_sums():
    """Against the words of docs/NUMERICS.md, one element at a time."""
    for length in (1, 15, 16, 17, 100, 256):
        x = normals(66, length)
        lanes = [np.float32(0)] * 16
        for i, value in enumerate(x):
            lanes[i % 16] = lanes[i % 16] + value
        for width in (8, 4, 2, 1):
            lanes = [lanes[i] + lanes[i + width] for i in range(width)]
        assert strided_sum(x[None])[0] == lanes[0]


# --- float16 ---


def all_halves():
    return np.arange(65536, dtype=np.uint16)


def half_value(pattern):
    """Exact value of a float16 by its fields."""
    sign, exponent, fraction = pattern >> 15, pattern >> 10 & 31, pattern & 1023
    return (-1) ** sign * math.ldexp(fraction + (1024 if exponent else 0), max(exponent, 1) - 25)


def test_every_half_to_float():
    values = f16_to_f32(all_halves().view(np.uint8))
    for pattern in range(65536):
        if pattern >> 10 & 31 == 31:
            assert np.isnan(values[pattern]) == (pattern & 1023 != 0)
        else:
            assert values[pattern] == half_value(pattern)
    assert np.signbit(values[0x8000])


def midpoints():
    """Every float32 halfway between two halves, with its two neighbours, and past the largest."""
    positive = f16_to_f32(all_halves()[:0x7C00].view(np.uint8))
    between = (positive[:-1] + positive[1:]) * np.float32(0.5)  # exact: both have at most 12 bits
    beyond = np.array([65504, 65519.996, 65520, 1e6, 3.4e38], np.float32)
    up, down = np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(0))
    x = np.concatenate([positive, between, up, down, beyond, np.array([1e-45, 2.0**-25, 2.0**-149], np.float32)])
    return np.concatenate([x, -x])


def to_half_with_integers(x):
    """Round to nearest even by whole numbers, clamped to the largest."""
    bits = x.view(np.uint32).astype(np.int64)
    sign, magnitude = bits >> 31 << 15, bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    # Bits to drop: 13, and more among float16's subnormals, whose leading one is explicit.
    drop = np.clip(13 + np.maximum(113 - exponent, 0), 13, 40)
    whole = np.where(exponent < 113, (magnitude & 0x7FFFFF) | 0x800000, magnitude - (112 << 23))
    whole = np.where(exponent == 0, 0, whole)
    kept, rest, half = whole >> drop, whole & ((1 << drop) - 1), 1 << (drop - 1)
    kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    return (np.minimum(kept, 0x7BFF) | sign).astype(np.uint16)


def test_float_to_half():
    x = np.concatenate([midpoints(), any_floats(67, 300_000)])
    x = x[~np.isnan(x)]
    assert np.array_equal(f32_to_f16(x).view(np.uint16), to_half_with_integers(x))
    assert np.isnan(f32_to_f16(np.array([np.nan], np.float32)))[0]


def test_float_to_half_in_the_cache():
    """Through a window of one key: its weight is exp(0) / 1, so what comes out is the value as it was stored."""
    x = midpoints()
    x = np.resize(x, (-(-len(x) // 512), 512))
    spec = Attention(0, 32, 32, 16, 1.0, 1)

    def forward(ops):
        values = inputs(ops, x)
        nothing = ops.scale(values, 0.0)
        return ops.attend(nothing, nothing, values, spec)

    found = run_both(forward, (spec,), rows_of(len(x)))
    assert same(found, f16_to_f32(to_half_with_integers(x.reshape(-1)).view(np.uint8)).reshape(x.shape) + 0).all()


def test_bfloat16_is_the_upper_half():
    patterns = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(bf16_to_f32(patterns.view(np.uint8)).view(np.uint32), patterns.astype(np.uint32) << 16)


# --- quantising activations ---


def quantised_by_hand(block):
    """``d`` and ``q`` of 32 floats, with fractions."""
    amax = max(abs(value) for value in block)
    inverse = Fraction(float(np.float32(127) / np.float32(amax)))
    return np.float32(amax) / np.float32(127), [round(Fraction(float(value)) * inverse) for value in block]


def test_quantise_rounds_the_exact_product():
    blocks = np.ldexp(normals(68, 200, 32), (np.arange(200) % 150 - 75)[:, None])
    ties = np.arange(-16, 16, dtype=np.float32) * np.float32(3.5)
    ties[0] = 127
    blocks = np.concatenate([blocks, ties[None], ties[None] * np.float32(2.0**-80)])
    activations = quantise(blocks)
    for row, block in enumerate(blocks):
        d, q = quantised_by_hand(block)
        assert activations.d[row, 0] == d
        assert activations.q[row, 0].tolist() == q
    assert np.abs(activations.q).max() == 127


def test_quantise_leaves_out_what_it_cannot_scale():
    block = normals(69, 1, 32)
    with np.errstate(all="ignore"):
        for value in (np.nan, np.inf, -np.inf):
            for place in range(32):
                spoiled = block.copy()
                spoiled[0, place] = value
                activations = quantise(spoiled)
                assert np.isnan(activations.d[0, 0])
                assert not activations.q.any()
    edge = SMALLEST.view(np.float32)
    assert edge == 2.0**-90
    for amax, kept in ((np.nextafter(edge, np.float32(0)), False), (edge, True), (np.float32(1e-45), False)):
        small = np.zeros((1, 32), np.float32)
        small[0, 5] = -amax
        activations = quantise(small)
        assert (activations.d[0, 0] > 0) == kept
        assert activations.q[0, 0, 5] == (-127 if kept else 0)


# --- rotation tables ---

HALF_PI_DIGITS = 80


def decimal_pi():
    """Machin's formula."""

    def arctan_of_inverse(n):
        term = total = Decimal(1) / n
        k = 1
        while abs(term) > Decimal(10) ** -(HALF_PI_DIGITS + 5):
            term = -term / (n * n)
            k += 2
            total += term / k
        return total

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def decimal_sin_cos(x, pi):
    """Sine and cosine of an exact binary64."""
    value = Decimal(float(x)) % (2 * pi)
    sine = cosine = Decimal(0)
    term = Decimal(1)
    k = 0
    while abs(term) > Decimal(10) ** -60 or k < 10:
        part = (1, 1, -1, -1)[k % 4] * term
        sine, cosine = (sine + part, cosine) if k % 2 else (sine, cosine + part)
        k += 1
        term = term * value / k
    return sine, cosine


def angles():
    """Positions times frequencies as models have them, whole angles near multiples of pi/2, and small ones."""
    position = integers(70, 0, 2**20, 250).astype(np.float64)
    frequency = np.array(frequencies(10000.0, 64))[integers(71, 0, 32, 250)]
    quarters = integers(72, 1, 600_000, 100) * (math.pi / 2)  # one of the two results is nearly zero
    whole = np.round(integers(74, 1, 600_000, 100) * (math.pi / 2))
    return np.concatenate(
        [position * frequency, quarters, whole, words(73, 50).astype(np.float64) * 2.0**-62, [0.0, 1e-8, 1.0]]
    )


def test_sine_and_cosine_against_decimals():
    x = angles()
    found = sin_cos(x)
    with localcontext() as context:
        context.prec = HALF_PI_DIGITS
        pi = decimal_pi()
        for i, angle in enumerate(x):
            for value, exact in zip((found[0][i], found[1][i]), decimal_sin_cos(angle, pi), strict=True):
                distance = abs(Decimal(float(value)) - exact)
                assert distance <= Decimal(math.ulp(float(exact))), float(angle)
                assert np.float32(value) == round_f32(Fraction(exact)), float(angle)


def test_tables_are_those_functions_rounded_once():
    rope = Rope(frequencies(10000.0, 32), False)
    cos, sin = table(rope, 300, 5)
    for row, position in enumerate(range(300, 305)):
        s, c = sin_cos(np.float64(position) * np.array(rope.frequencies))
        assert np.array_equal(cos[row], c.astype(np.float32))
        assert np.array_equal(sin[row], s.astype(np.float32))
    joined = np.concatenate([table(rope, 0, 200)[0], table(rope, 200, 105)[0]])
    assert np.array_equal(joined, table(rope, 0, 305)[0])  # growing a table changes nothing


@pytest.mark.parametrize("base, rotated", [(10000.0, 64), (500000.0, 128), (1_000_000.0, 256), (150000.0, 20)])
def test_frequencies_are_correctly_rounded(base, rotated):
    with localcontext() as context:
        context.prec = 90
        for i, frequency in enumerate(frequencies(base, rotated)):
            exact = Decimal(base) ** (Decimal(-2 * i) / Decimal(rotated))
            assert frequency == float(exact)
        for i, frequency in enumerate(frequencies(base, rotated, (3.0,) * (rotated // 2), 8.0)):
            assert frequency == float(Decimal(base) ** (Decimal(-2 * i) / Decimal(rotated)) / 24)


@pytest.mark.parametrize(
    "base, rotated, original, factor", [(1e4, 32, 64, 4.0), (1e6, 128, 32768, 2.5), (5e5, 64, 8192, 0.5)]
)
def test_yarn_frequencies_are_correctly_rounded(base, rotated, original, factor):
    found = frequencies(base, rotated, factor=factor, yarn=Yarn(original))
    with localcontext() as context:
        context.prec = 90

        def pair(turns):
            return rotated * (Decimal(original) / (2 * decimal_pi() * turns)).ln() / (2 * Decimal(base).ln())

        low, high = max(0, math.floor(pair(32))), min(rotated - 1, math.ceil(pair(1)))
        assert low < high < rotated // 2  # all three kinds of pairs are there
        for i, frequency in enumerate(found):
            stretched = min(Decimal(1), max(Decimal(0), Decimal(i - low) / (high - low)))
            share = stretched / Decimal(factor) + (1 - stretched)
            assert frequency == float(Decimal(base) ** (Decimal(-2 * i) / Decimal(rotated)) * share)
    plain = frequencies(base, rotated)
    assert found[0] == plain[0] and found[-1] == pytest.approx(plain[-1] / factor, rel=1e-15)


def test_yarn_of_a_context_too_short_for_any_pair():
    """Both bounds are the first pair: it alone keeps its frequency."""
    assert Yarn(4).kept(1e4, 8) == [1, 0, 0, 0]
    assert frequencies(1e4, 8, factor=2.0, yarn=Yarn(4))[1:] == frequencies(1e4, 8, factor=2.0)[1:]


def test_yarn_divides_by_the_tensor_of_factors_too():
    divided = frequencies(1e4, 32, (4.0,) * 16, 4.0, Yarn(64))
    assert divided == tuple(f / 4 for f in frequencies(1e4, 32, factor=4.0, yarn=Yarn(64)))


def test_yarn_magnitude():
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == 1.0
    assert yarn_magnitude(0.5, 1.25) == 1.25
    with localcontext() as context:
        context.prec = 90
        assert yarn_magnitude(4.0, 1.5) == float(Decimal("1.5") * (1 + Decimal(4).ln() / 10))
