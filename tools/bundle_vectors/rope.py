"""The shortest way to say what bytes a file has: as stretches of a base, zeros, and what is left in hex."""

from __future__ import annotations

import re
from typing import Any

Recipe = dict[str, Any]

GRAM = 16
"""Bytes that must be alike before a stretch is looked at; shorter ones are said in hex."""

_ZEROS = re.compile(rb"\0*")


class Base:
    """A file from which stretches are taken, with an index of where its bytes stand."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data
        self.places: dict[bytes, int] = {}
        for at in range(len(data) - GRAM, -1, -1):
            if data[at] or data[at + GRAM - 1]:
                self.places[data[at : at + GRAM]] = at

    def longest(self, data: bytes, at: int, shift: int) -> tuple[int, int]:
        """(where it stands in the base, how long it is) of a stretch that begins at ``at``; length 0: none."""
        places = [at + shift, len(self.data) - len(data) + at]
        if (found := self.places.get(data[at : at + GRAM])) is not None:
            places.append(found)
        gram = data[at : at + GRAM]
        near = [place for place in places if place >= 0 and self.data.startswith(gram, place)]
        return max(((place, self.alike(data, at, place)) for place in near), key=lambda pair: pair[1], default=(0, 0))

    def alike(self, data: bytes, at: int, place: int) -> int:
        """How many bytes are the same from there on, by halving."""
        low, high = 0, max(min(len(data) - at, len(self.data) - place), 0)
        while low < high:
            middle = (low + high + 1) // 2
            is_same = data[at + low : at + middle] == self.data[place + low : place + middle]
            low, high = (middle, high) if is_same else (low, middle - 1)
        return low


def recipe(data: bytes, base: Base | None, unit: bytes = b"") -> Recipe:
    """What ``conformance.bundle_vectors.file_bytes`` turns into ``data``; ``unit`` is something that is repeated."""
    parts: list[Recipe] = []
    literal = bytearray()
    at, shift = 0, 0
    while at < len(data):
        place, copied = base.longest(data, at, shift) if base else (0, 0)
        match = _ZEROS.match(data, at)
        zeros = len(match[0]) if match else 0
        length = max(copied, zeros)
        times = _times(data, at, unit)
        if len(unit) * times > length:
            part: Recipe = {"hex": unit.hex(), "times": times}
            length = len(unit) * times
        elif length < GRAM:
            literal.append(data[at])
            at += 1
            continue
        else:
            part = {"copy": [place, place + copied]} if copied >= zeros else {"zeros": zeros}
            shift = place - at if copied >= zeros else shift
        _flush(literal, parts)
        parts.append(part)
        at += length
    _flush(literal, parts)
    return ({"base": base.name} if base else {}) | {"parts": parts}


def _times(data: bytes, at: int, unit: bytes) -> int:
    """How often the unit stands there, one behind the other; 0 where that is no saving."""
    count = 0
    while unit and data.startswith(unit, at + count * len(unit)):
        count += 1
    return count if count > 2 else 0


def _flush(literal: bytearray, parts: list[Recipe]) -> None:
    if literal:
        parts.append({"hex": literal.hex()})
        literal.clear()
