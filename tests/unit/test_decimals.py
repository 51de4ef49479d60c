"""Decimal text to binary32 and back: one correct rounding, against exact fractions."""

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktc.errors import Malformed
from receipts.decimals import bits_to_float, decimal_bits, format_f32, parse_decimal_f32

LARGEST = bits_to_float(0x7F7FFFFF)
NORMAL, SMALLEST = bits_to_float(0x00800000), bits_to_float(1)
ALL_BITS = st.integers(0, 0x7F7FFFFF) | st.integers(0x80000001, 0xFF7FFFFF) | st.integers(0, 0x01000000)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0", 0),
        ("0.0", 0),
        ("1", 0x3F800000),
        ("-1.50", 0xBFC00000),
        ("0.8", 0x3F4CCCCD),
        ("0.1", 0x3DCCCCCD),
        ("16777217", 0x4B800000),  # a tie, to even
        ("16777219", 0x4B800002),
        ("340282346638528859811704183484516925440", 0x7F7FFFFF),
        ("340282356779733661637539395458142568447", 0x7F7FFFFF),  # one below where infinity begins
        # One over a tie by less than float64 can see: rounding twice gives 0x3F800000.
        ("1.0000000596046447753906250000000001", 0x3F800001),
        ("1.000000059604644775390625", 0x3F800000),
        ("0." + "0" * 37 + "11754943508222875", 0x00800000),  # the smallest normal number
        ("0." + "0" * 37 + "11754942807573643", 0x00800000),  # rounds up to it
        ("0." + "0" * 37 + "11754942", 0x007FFFFF),
        ("0." + "0" * 44 + "1401298464324817", 1),
        ("-0." + "0" * 45 + "7006492321624086", 0x80000001),  # just over half of that
    ],
)
def test_known_answers(text, bits):
    assert decimal_bits(text) == bits


@pytest.mark.parametrize(
    "text",
    ["", "-", "+1", "01", "1.", ".5", "1e2", "1E2", " 1", "1 ", "1_0", "-0", "-0.0", "nan", "inf", "-inf", "0x1"]
    + ["1,5", "١", "1\n", "340282356779733661637539395458142568448", "9" * 64, "0." + "0" * 63, "0." + "0" * 45 + "7"]
    + ["0." + "0" * 60 + "1"],
)
def test_refusals(text):
    with pytest.raises(Malformed) as caught:
        parse_decimal_f32(text)
    assert caught.value.name == "BAD_DECIMAL"


@given(st.integers(-(10**30), 10**30), st.integers(0, 60))
def test_the_nearest_binary32_is_taken(digits, places):
    sign, plain = ("-" if digits < 0 else ""), str(abs(digits)).rjust(places + 1, "0")
    text = f"{sign}{plain[: len(plain) - places]}" + (f".{plain[len(plain) - places :]}" if places else "")
    exact = Fraction(digits, 10**places)
    if len(text) > 64 or 0 < abs(exact) <= Fraction(SMALLEST) / 2:
        return
    bits = decimal_bits(text) if exact else 0
    distance = abs(Fraction(bits_to_float(bits)) - exact)
    for neighbour in (bits - 1, bits + 1):
        if exact and 0 <= neighbour & 0x7FFFFFFF <= 0x7F7FFFFF:
            apart = abs(Fraction(bits_to_float(neighbour)) - exact)
            assert distance < apart or (distance == apart and bits % 2 == 0)


@given(ALL_BITS)
def test_format_round_trips(bits):
    text = format_f32(bits_to_float(bits))
    assert decimal_bits(text) == bits
    assert "e" not in text and not (("." in text) and text.endswith("0"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (1.0, "1"), (0.8, "0.8"), (0.1, "0.1"), (-1.5, "-1.5"), (10000.0, "10000")]
    + [(1e10, "10000000000"), (0.05, "0.05"), (1e-5, "0.00001"), (16777216.0, "16777216"), (1 / 3, "0.33333334")],
)
def test_format_known_answers(value, text):
    assert format_f32(value) == text


def test_format_reaches_both_ends():
    assert decimal_bits(format_f32(LARGEST)) == 0x7F7FFFFF
    assert decimal_bits(format_f32(NORMAL)) == 0x00800000
    assert decimal_bits(format_f32(SMALLEST)) == 1
    assert decimal_bits(format_f32(-LARGEST)) == 0xFF7FFFFF


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, SMALLEST / 2, 1e-60, -7e-46])
def test_format_refuses_what_has_no_spelling(value):
    with pytest.raises(Malformed):
        format_f32(value)


def test_format_agrees_with_struct_rounding():
    assert decimal_bits(format_f32(0.7)) == struct.unpack("<I", struct.pack("<f", 0.7))[0]
