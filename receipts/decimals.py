"""Decimal text and binary32, each way with one correct rounding.

Grammar: an optional minus, digits without a leading zero, an optional point
and digits: ``0``, ``-1.5``, ``0.80``. No exponent, no plus, at most 64
characters. A number must be 0 or a finite binary32, subnormals included:
infinities, NaN, -0 and what isn't 0 but rounds to it are refused, so that one
value has one bit pattern.
"""

from __future__ import annotations

import math
import re
import struct

from ktc import limits
from ktc.canonical import show
from ktc.errors import Malformed

_GRAMMAR = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_MIN_EXPONENT, _MAX_EXPONENT = -126, 127
"""Of normal numbers; subnormals share the lowest exponent."""
_FRACTION_BITS = 23


def parse_decimal_f32(text: str) -> float:
    """The binary32 nearest to a decimal (ties to even); raises Malformed."""
    return bits_to_float(decimal_bits(text))


def decimal_bits(text: str) -> int:
    """The 32 bits of a decimal, as an unsigned integer; raises Malformed."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= limits.MAX_DECIMAL_CHARS else None
    if match is None:
        raise Malformed(f"{show(text)} is not a decimal such as 0.8", name="BAD_DECIMAL")
    sign, whole, fraction = match[1], match[2], match[3] or ""
    numerator, denominator = int(whole + fraction), 10 ** len(fraction)
    if numerator == 0:
        if sign:
            raise Malformed(f"{show(text)} is not a spelling of 0", name="BAD_DECIMAL")
        return 0
    return (bool(sign) << 31) | _round_to_bits(numerator, denominator, text)


def _round_to_bits(numerator: int, denominator: int, text: str) -> int:
    """Exponent and fraction bits of a positive ratio, rounded once in exact integers."""
    exponent = numerator.bit_length() - denominator.bit_length()
    if numerator << max(-exponent, 0) < denominator << max(exponent, 0):
        exponent -= 1  # now 2^exponent <= ratio < 2^(exponent+1)
    exponent = max(exponent, _MIN_EXPONENT)
    shift = _FRACTION_BITS - exponent
    quotient, rest = divmod(numerator << max(shift, 0), denominator << max(-shift, 0))
    doubled = 2 * rest - (denominator << max(-shift, 0))
    quotient += doubled > 0 or (doubled == 0 and quotient & 1)
    if quotient >> (_FRACTION_BITS + 1):
        quotient, exponent = quotient >> 1, exponent + 1
    if exponent > _MAX_EXPONENT or quotient == 0:
        raise Malformed(f"{show(text)} is outside the range of binary32", name="BAD_DECIMAL")
    # The leading bit of a normal number adds one to the exponent field; a subnormal has none, and the field is 0.
    return ((exponent - _MIN_EXPONENT) << _FRACTION_BITS) + quotient


def bits_to_float(bits: int) -> float:
    """The binary32 of a 32-bit pattern, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def format_f32(value: float) -> str:
    """The shortest decimal that rounds to ``value`` rounded to binary32, without an exponent."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        single = math.inf
    if not math.isfinite(single) or (single == 0 and value != 0):
        raise Malformed(f"{value!r} is outside the range of binary32", name="BAD_DECIMAL")
    if single == 0:
        return "0"
    texts = (_expand(f"{single:.{digits}e}") for digits in range(9))  # nine significant digits always suffice
    return next(text for text in texts if _is_spelling(text, single))


def _is_spelling(text: str, single: float) -> bool:
    """False also for a short text that leaves the range, as 3.403e38 does for the largest binary32."""
    try:
        return parse_decimal_f32(text) == single
    except Malformed:
        return False


def _expand(scientific: str) -> str:
    """``-1.25e-03`` to ``-0.00125``."""
    mantissa, exponent = scientific.split("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, point = whole + fraction, 1 + int(exponent)
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"
