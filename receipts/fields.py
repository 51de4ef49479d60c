"""The kinds of value that only receipts have: decimals. The others are those of ``ktc.fields``.

A decimal is text in JSON and the 32 bits of a binary32 in CBOR.
"""

from __future__ import annotations

from ktc.canonical import Value, show
from ktc.errors import Malformed
from ktc.fields import Field, exact
from receipts.decimals import bits_to_float, decimal_bits, format_f32, parse_decimal_f32

SMALLEST_DIVISOR = 2.0**-120


class Decimal(Field):
    """A binary32 as decimal text (``receipts.decimals``), from ``low`` to ``high``, and greater than ``above``.

    A ``divisor`` other than 0 is at least 2^-120: dividing by less would overflow.
    """

    def __init__(
        self, low: float = -3.5e38, high: float = 3.5e38, *, above: float | None = None, divisor: bool = False
    ) -> None:
        self.low, self.high, self.above, self.divisor = low, high, above, divisor

    def check(self, value: object, path: str) -> None:
        number = self._parse(exact(value, str, path), path)
        too_small = self.divisor and 0 < abs(number) < SMALLEST_DIVISOR
        if not self.low <= number <= self.high or (self.above is not None and number <= self.above) or too_small:
            raise Malformed(f"{path} cannot be {show(value)}", name="OUT_OF_RANGE")

    def pack(self, value: str) -> Value:
        return decimal_bits(value)

    def unpack(self, value: object, path: str) -> object:
        bits = exact(value, int, path)
        if not 0 <= bits < 2**32:
            raise Malformed(f"{path} must be the 32 bits of a binary32", name="OUT_OF_RANGE")
        return format_f32(bits_to_float(bits))

    @staticmethod
    def _parse(text: str, path: str) -> float:
        try:
            return parse_decimal_f32(text)
        except Malformed as error:
            raise Malformed(f"{path}: {error}", name=error.name) from None


class Bias(Decimal):
    """A decimal, or ``-inf`` for a token that may never be drawn."""

    NEVER, NEVER_BITS = "-inf", 0xFF800000

    def check(self, value: object, path: str) -> None:
        if value != self.NEVER:
            super().check(value, path)

    def pack(self, value: str) -> Value:
        return self.NEVER_BITS if value == self.NEVER else super().pack(value)

    def unpack(self, value: object, path: str) -> object:
        return self.NEVER if exact(value, int, path) == self.NEVER_BITS else super().unpack(value, path)
