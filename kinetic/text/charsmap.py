"""Replacements of characters as SentencePiece compiles them into a file: which beginnings of a text become what.

The blob is the size of a table in bytes (uint32, little-endian), the table, and texts that each end with a zero byte.
The table is a double array (Darts-clone): a unit of 32 bits holds the byte that leads to it (bits 0 to 7), whether a
match ends there (bit 8), and how far its children are: bits 10 and up, times 256 if bit 9 is set. The child for byte c
is at ``(unit ^ distance) ^ c``; ``unit ^ distance`` itself holds, if a match ends, where its replacement begins.
"""

from __future__ import annotations

from array import array
from sys import byteorder

from kinetic.text.vocabulary import bad

LABEL = 0x800000FF
"""Bits that must be the byte followed; the highest marks a value, which no byte leads to."""


class Charsmap:
    """Raises MalformedGguf for a blob that points outside itself, when it is first followed there."""

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or size + 4 >= len(blob):
            raise _outside()
        self._units = array("I", blob[4 : 4 + size])
        if self._units.itemsize != 4:
            raise AssertionError("an unsigned int has 32 bits wherever this runs")
        if byteorder == "big":
            self._units.byteswap()
        self._texts = blob[4 + size :]
        self._known: dict[int, bytes] = {}

    def replace(self, text: str) -> str:
        """``text`` with each longest match, from the left, replaced; what matches nothing stays as it is."""
        if not self._units:
            return text
        data, out, start, kept = text.encode(), bytearray(), 0, 0
        while start < len(data):
            length, replacement = self._match(data, start)
            if length:
                out += data[kept:start] + replacement
                kept = start = start + length
            else:
                start += 1
                while start < len(data) and data[start] & 0xC0 == 0x80:  # to the next character
                    start += 1
        return (out + data[kept:]).decode("utf-8", "replace")

    def _match(self, data: bytes, start: int) -> tuple[int, bytes]:
        """Bytes of the longest match at ``start`` (0: none), and what takes its place."""
        units, length, place = self._units, 0, 0
        try:
            node = _distance(units[0])
            for end in range(start, len(data)):
                byte = data[end]
                node ^= byte
                unit = units[node]
                if byte == 0 or unit & LABEL != byte:
                    break
                node ^= _distance(unit)
                if unit >> 8 & 1:
                    length, place = end + 1 - start, units[node] & 0x7FFFFFFF
        except IndexError:
            raise _outside() from None
        return length, self._text(place) if length else b""

    def _text(self, place: int) -> bytes:
        found = self._known.get(place)
        if found is None:
            end = self._texts.find(b"\0", place)
            if end < 0:
                raise _outside()
            found = self._known[place] = self._texts[place:end]
        return found


def _distance(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _outside() -> Exception:
    return bad("BAD_NORMALIZER", "tokenizer.ggml.precompiled_charsmap points outside itself")
