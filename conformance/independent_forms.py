"""Strict CBOR, kinds of fields and GGUF keys, for the reader that was written from FORMAT.md alone.

Sections "Conventions", "Limits" and "Canonical form"; what they refuse has the names of steps 2
and 5 of a receipt. GGUF is read as section "Manifest" describes it.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH, MAX_CONTAINERS, MAX_INTEGER = 8, 262144, 2**53 - 1
MAX_STRING_BYTES, MAX_SIGNATURE_BYTES = 1024, 1024
WINDOW_BYTES = 1 << 20
MAX_GGUF_BYTES, MAX_GGUF_KEY_BYTES = 268435456, 65535
"""How far into a GGUF file its keys may reach, and how long the name of one may be."""
GGUF_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
"""How a value of each type of fixed size is laid out."""
GGUF_BOOL, GGUF_STRING, GGUF_ARRAY = 7, 8, 9

Table = dict[str, Any]
Kind = Callable[[Any, str], None]
"""Judges a value; the text says where it stands."""


class Refusal(Exception):
    """Why a bundle is refused: exit code and name as in FORMAT.md's tables, and a sentence."""

    def __init__(self, exit_code: int, name: str, message: str) -> None:
        super().__init__(message)
        self.exit_code, self.name, self.message = exit_code, name, message


def require(condition: bool, name: str, message: str, exit_code: int = 11) -> None:
    """Refuses with ``name`` unless ``condition`` holds."""
    if not condition:
        raise Refusal(exit_code, name, message)


class Decoder:
    """Decodes deterministic CBOR (section "Canonical form") and refuses every other encoding."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._containers = data, 0, 0

    def whole(self) -> Any:
        """The one value that all the bytes are."""
        value = self._value(0)
        require(self._at == len(self._data), "BAD_CBOR", f"bytes after the value, from {self._at}")
        return value

    def _take(self, length: int) -> bytes:
        end = self._at + length
        require(end <= len(self._data), "BAD_CBOR", f"the CBOR ends inside the item at {self._at}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _value(self, depth: int) -> Any:
        first = self._take(1)[0]
        major, low = first >> 5, first & 31
        if major == 7:
            return self._simple(low)
        require(major != 6, "BAD_CBOR", f"a tag at {self._at - 1}")
        number = self._number(major, low)
        if major < 2:
            require(number <= MAX_INTEGER - major, "OUT_OF_RANGE", f"an integer beyond 2^53-1 before {self._at}")
            return -1 - number if major else number
        if major < 4:
            return self._string(major, number)
        self._containers += 1
        require(depth < MAX_DEPTH, "TOO_DEEP", "containers inside containers, too deep", 14)
        require(self._containers <= MAX_CONTAINERS, "TOO_MANY_CONTAINERS", "too many arrays and tables", 14)
        return [self._value(depth + 1) for _ in range(number)] if major == 4 else self._map(number, depth)

    def _simple(self, low: int) -> bool:
        require(low not in (25, 26, 27), "FLOAT", f"a float at {self._at - 1}")
        require(low in (20, 21), "BAD_CBOR", f"null or another simple value at {self._at - 1}")
        return low == 21

    def _number(self, major: int, low: int) -> int:
        if low < 24:
            return low
        require(low != 31 or major < 2, "NOT_CANONICAL", f"an indefinite length at {self._at - 1}")
        require(low < 28, "BAD_CBOR", f"a reserved length at {self._at - 1}")
        number = int.from_bytes(self._take(1 << (low - 24)), "big")
        shortest = number >= (24, 1 << 8, 1 << 16, 1 << 32)[low - 24]
        require(shortest, "NOT_CANONICAL", f"a number longer than needed before {self._at}")
        return number

    def _string(self, major: int, length: int) -> bytes | str:
        data = self._take(length)
        try:
            return data if major == 2 else data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(11, "BAD_CBOR", f"a text that is no UTF-8 before {self._at}") from error

    def _map(self, count: int, depth: int) -> Table:
        table: Table = {}
        last = b""
        for _ in range(count):
            start = self._at
            key = self._value(depth + 1)
            require(isinstance(key, str), "BAD_CBOR", f"a key that is no text at {start}")
            encoded = self._data[start : self._at]
            require(key not in table, "DUPLICATE_KEY", f"the key {key!r} stands twice")
            require(encoded > last, "NOT_CANONICAL", f"the key {key!r} is out of order")
            last = encoded
            table[key] = self._value(depth + 1)
        return table


def word(pattern: str) -> Kind:
    """Text that ``pattern`` matches whole: its length, if any, is a range and no limit."""

    def judge(value: Any, where: str) -> None:
        require(isinstance(value, str), "WRONG_TYPE", f"{where} is no text")
        require(re.fullmatch(pattern, value) is not None, "OUT_OF_RANGE", f"{where} may not be {value!r}")

    return judge


def text(pattern: str = r"(?s:.*)", limit: int = MAX_STRING_BYTES) -> Kind:
    """Text of at most ``limit`` bytes, a limit of the tables, that ``pattern`` matches whole."""

    def judge(value: Any, where: str) -> None:
        size = len(value.encode("utf-8")) if isinstance(value, str) else 0
        require(size <= limit, "TOO_LONG", f"{where} is longer than {limit} bytes", 14)
        word(pattern)(value, where)

    return judge


def file_name(value: Any, where: str) -> None:
    """One line of text of 1 to 255 bytes that is a name in every folder."""
    word(r"(?!\.{1,2}\Z)[^/\\\x00-\x1f\x7f-\x9f]+")(value, where)
    size = len(value.encode("utf-8"))
    require(size <= 255, "OUT_OF_RANGE", f"{where} has {size} bytes")


def integer(low: int = -MAX_INTEGER, high: int = MAX_INTEGER) -> Kind:
    """An integer, and no boolean."""

    def judge(value: Any, where: str) -> None:
        require(type(value) is int, "WRONG_TYPE", f"{where} is no integer")
        require(low <= value <= high, "OUT_OF_RANGE", f"{where} may not be {value}")

    return judge


def octets(length: int, *, or_empty: bool = False) -> Kind:
    """A byte string of ``length`` bytes, or the text "" where FORMAT.md says "or empty"."""

    def judge(value: Any, where: str) -> None:
        if or_empty and value == "":
            return
        require(isinstance(value, bytes), "WRONG_TYPE", f"{where} is no byte string")
        require(len(value) == length, "OUT_OF_RANGE", f"{where} may not have {len(value)} bytes")

    return judge


def key_or_signature(value: Any, where: str) -> None:
    """A byte string whose length is the algorithm's business, below the limit."""
    require(isinstance(value, bytes), "WRONG_TYPE", f"{where} is no byte string")
    require(len(value) <= MAX_SIGNATURE_BYTES, "TOO_LONG", f"{where} has {len(value)} bytes", 14)


def boolean(value: Any, where: str) -> None:
    """True or false."""
    require(isinstance(value, bool), "WRONG_TYPE", f"{where} is no boolean")


def array(kind: Kind, high: int, low: int = 0) -> Kind:
    """An array of ``low`` to ``high`` entries."""

    def judge(value: Any, where: str) -> None:
        require(isinstance(value, list), "WRONG_TYPE", f"{where} is no array")
        require(len(value) <= high, "TOO_MANY_ENTRIES", f"{where} has more than {high} entries", 14)
        require(len(value) >= low, "OUT_OF_RANGE", f"{where} has fewer than {low} entries")
        for index, entry in enumerate(value):
            kind(entry, f"{where}[{index}]")

    return judge


def table(fields: Mapping[str, Kind]) -> Kind:
    """A closed table: each of ``fields`` and no other."""

    def judge(value: Any, where: str) -> None:
        require(isinstance(value, dict), "WRONG_TYPE", f"{where} is no table")
        for key in value:
            require(key in fields, "UNKNOWN_FIELD", f"{where} has an unknown field {key!r}")
        for key, kind in fields.items():
            require(key in value, "MISSING_FIELD", f"{where} lacks {key!r}")
            kind(value[key], f"{where}.{key}")

    return judge


class Source:
    """An open file that is read by position; a short read means that it was changed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = os.fstat(descriptor)
        self.size = self._before.st_size
        require(stat.S_ISREG(self._before.st_mode), "NOT_A_FILE", "no regular file", 3)

    def read(self, at: int, length: int) -> bytes:
        """``length`` bytes from ``at``, all inside the size that the file had when it was opened."""
        parts = bytearray()
        while len(parts) < length:
            part = os.pread(self._descriptor, length - len(parts), at + len(parts))
            require(part != b"", "FILE_CHANGED", f"the file ends before byte {at + length}", 3)
            parts += part
        return bytes(parts)

    def windows(self, at: int, length: int) -> Iterator[bytes]:
        """The same in pieces of ``WINDOW_BYTES``."""
        for start in range(0, length, WINDOW_BYTES):
            yield self.read(at + start, min(WINDOW_BYTES, length - start))

    def require_unchanged(self) -> None:
        """Refuses if size or times of the file are no longer those of its opening."""
        now, then = os.fstat(self._descriptor), self._before
        same = all(getattr(now, name) == getattr(then, name) for name in ("st_size", "st_mtime_ns", "st_ctime_ns"))
        require(same, "FILE_CHANGED", "the file was changed while it was checked", 3)


class Gguf:
    """The keys of a GGUF file that lies at ``at`` in ``source``: where each record begins and ends."""

    def __init__(self, source: Source, at: int, length: int) -> None:
        self._source, self._at, self._end = source, at, at + min(length, MAX_GGUF_BYTES)
        require(self._take(4) == b"GGUF" and self._int(4) in (2, 3), "BAD_GGUF", "no GGUF file of version 2 or 3")
        self._skip(8)  # the number of tensors
        self.records: dict[bytes, tuple[int, int]] = {}
        for _ in range(self._int(8)):
            start, key = self._at, self._key()
            self._skip_value(self._int(4))
            self.records[key] = (start, self._at)

    def _key(self) -> bytes:
        start, length = self._at, self._int(8)
        require(1 <= length <= MAX_GGUF_KEY_BYTES, "BAD_GGUF", f"a key of {length} bytes at {start}")
        key = self._take(length)
        try:
            key.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(11, "BAD_GGUF", f"a key that is no UTF-8 at {start}") from error
        require(key not in self.records, "BAD_GGUF", f"the key {key!r} stands twice")
        return key

    def _skip_value(self, kind: int) -> None:
        count = 1
        if kind == GGUF_ARRAY:
            kind, count = self._int(4), self._int(8)
        if kind != GGUF_STRING:
            return self._skip_numbers(kind, count)
        for _ in range(count):
            self._skip(self._int(8))

    def _skip_numbers(self, kind: int, count: int) -> None:
        """Skips values of fixed size; an array is none, so that there are no arrays of arrays."""
        start = self._at
        require(kind in GGUF_NUMBERS, "BAD_GGUF", f"a value of type {kind} before {start}")
        self._skip(count * struct.calcsize(GGUF_NUMBERS[kind]))
        if kind == GGUF_BOOL:
            sound = not any(window.translate(None, b"\x00\x01") for window in self._source.windows(start, count))
            require(sound, "BAD_GGUF", f"a bool that is neither 0 nor 1 from {start} on")

    def _skip(self, length: int) -> None:
        require(length <= self._end - self._at, "BAD_GGUF", f"the keys end inside the item at {self._at}")
        self._at += length

    def _take(self, length: int) -> bytes:
        self._skip(length)
        return self._source.read(self._at - length, length)

    def _int(self, length: int) -> int:
        return int.from_bytes(self._take(length), "little")

    def value_of(self, key: bytes) -> bytes:
        """The beginning of a key's value, the type before it; nothing if there is no such key."""
        start, end = self.records.get(key, (0, 0))
        at = start + 8 + len(key)
        return self._source.read(at, min(end - at, WINDOW_BYTES)) if end else b""

    def number_of(self, key: bytes) -> float:
        """A key's value if it is there and a number, else 0."""
        value = self.value_of(key)
        layout = GGUF_NUMBERS.get(int.from_bytes(value[:4], "little")) if value else None
        return float(struct.unpack(layout, value[4:])[0]) if layout else 0.0
