"""The kinds of value that receipts, manifests and their like are made of.

Each kind knows three things: ``check`` refuses what the JSON form may not be,
``pack`` gives the canonical (CBOR) form of a checked value, ``unpack`` goes
back. Kinds differ from Python's types only where JSON has no fitting one:
digests are hex text in JSON and bytes in CBOR.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ktc import limits
from ktc.canonical import Value, require_unicode, show
from ktc.errors import LimitExceeded, Malformed

_TYPE_WORDS: dict[type, str] = {
    dict: "an object",
    list: "an array",
    int: "an integer",
    str: "a text",
    bytes: "a byte string",
    bool: "a boolean",
    type(None): "null",
}

Key = Callable[[Any], Any]
"""What to compare of an entry."""


def exact(value: object, kind: type, path: str) -> Any:
    """``value``, if its type is exactly ``kind``: True is not an integer."""
    if type(value) is not kind:
        found = _TYPE_WORDS.get(type(value), "something else")
        raise Malformed(f"{path} must be {_TYPE_WORDS[kind]}, not {found}", name="WRONG_TYPE")
    return value


class Field(ABC):
    """A kind of value; the base class packs a value as it is."""

    @abstractmethod
    def check(self, value: object, path: str) -> None:
        """Raise Malformed, naming ``path``, unless ``value`` is of this kind."""

    def pack(self, value: Any) -> Value:
        return value  # type: ignore[no-any-return]

    def unpack(self, value: object, path: str) -> object:
        return value


class Text(Field):
    """Unicode text of at most ``limit`` UTF-8 bytes, matching ``pattern`` as a whole if there is one."""

    def __init__(self, limit: int = limits.MAX_STRING_BYTES, pattern: str = "") -> None:
        self.limit, self.pattern = limit, re.compile(pattern) if pattern else None

    def check(self, value: object, path: str) -> None:
        text = exact(value, str, path)
        require_unicode(text)
        if len(text.encode("utf-8")) > self.limit:
            raise LimitExceeded(f"{path} is longer than {self.limit:,} bytes", name="TOO_LONG")
        if self.pattern and not self.pattern.fullmatch(text):
            raise Malformed(f"{path} cannot be {show(text)}", name="BAD_TEXT")


class Enum(Field):
    """One of a few fixed texts."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def check(self, value: object, path: str) -> None:
        if exact(value, str, path) not in self.choices:
            words = ", ".join(repr(choice) for choice in self.choices)
            raise Malformed(f"{path} is {show(value)}, but must be one of {words}", name="UNKNOWN_WORD")


class Int(Field):
    """An integer from ``low`` to ``high``, both included."""

    def __init__(self, low: int, high: int = limits.MAX_INTEGER) -> None:
        self.low, self.high = low, high

    def check(self, value: object, path: str) -> None:
        if not self.low <= exact(value, int, path) <= self.high:
            raise Malformed(f"{path} must be from {self.low} to {self.high}", name="OUT_OF_RANGE")


class Bool(Field):
    """A boolean."""

    def check(self, value: object, path: str) -> None:
        exact(value, bool, path)


class Unsigned64(Field):
    """An integer below 2^64, as decimal text in both forms: JSON readers lose such numbers."""

    _GRAMMAR = re.compile(r"0|[1-9][0-9]{0,19}")

    def check(self, value: object, path: str) -> None:
        text = exact(value, str, path)
        if not self._GRAMMAR.fullmatch(text) or int(text) >= 2**64:
            raise Malformed(f"{path} must be a whole number below 2^64 in plain digits", name="BAD_SEED")


class Hex(Field):
    """Bytes, as lower-case hex in JSON. ``size`` of them, or any number from ``size`` to ``most``."""

    def __init__(self, size: int = 32, most: int = 0) -> None:
        self.size, self.most = size, most or size

    def check(self, value: object, path: str) -> None:
        text = exact(value, str, path)
        size = len(text) // 2
        if len(text) % 2 or not self.size <= size <= self.most or not re.fullmatch("[0-9a-f]*", text):
            sizes = f"{2 * self.size}" if self.size == self.most else f"{2 * self.size} to {2 * self.most}"
            raise Malformed(f"{path} must be {sizes} lower-case hex digits", name="BAD_HEX")

    def pack(self, value: str) -> Value:
        return bytes.fromhex(value)

    def unpack(self, value: object, path: str) -> object:
        return exact(value, bytes, path).hex()


class Base64(Field):
    """Bytes, as padded base64 of the standard alphabet in JSON: one spelling, no line breaks, no spare bits."""

    def check(self, value: object, path: str) -> None:
        text = exact(value, str, path)
        if len(text) > limits.MAX_SIGNATURE_BYTES * 4 // 3 + 4:
            raise LimitExceeded(f"{path} is longer than {limits.MAX_SIGNATURE_BYTES} bytes", name="TOO_LONG")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            data = None
        if data is not None and len(data) > limits.MAX_SIGNATURE_BYTES:
            raise LimitExceeded(f"{path} is longer than {limits.MAX_SIGNATURE_BYTES} bytes", name="TOO_LONG")
        if data is None or base64.b64encode(data).decode("ascii") != text:
            raise Malformed(f"{path} is not padded base64", name="BAD_BASE64")

    def pack(self, value: str) -> Value:
        return base64.b64decode(value)

    def unpack(self, value: object, path: str) -> object:
        return base64.b64encode(exact(value, bytes, path)).decode("ascii")


class Optional(Field):
    """Another kind, or ``""`` for absence, in both forms."""

    def __init__(self, kind: Field) -> None:
        self.kind = kind

    def check(self, value: object, path: str) -> None:
        if value != "":
            self.kind.check(value, path)

    def pack(self, value: Any) -> Value:
        return "" if value == "" else self.kind.pack(value)

    def unpack(self, value: object, path: str) -> object:
        return "" if value == "" else self.kind.unpack(value, path)


class Tokens(Field):
    """Token ids in order; ``ascending`` makes it a set: strictly rising."""

    def __init__(self, *, ascending: bool = False) -> None:
        self.ascending = ascending

    def check(self, value: object, path: str) -> None:
        tokens = exact(value, list, path)
        if len(tokens) > limits.MAX_TOKENS:
            raise LimitExceeded(f"{path} has more than {limits.MAX_TOKENS:,} tokens", name="TOO_MANY_TOKENS")
        for wrong in set(map(type, tokens)) - {int}:
            raise Malformed(f"{path} must hold only integers, not {wrong.__name__}", name="WRONG_TYPE")
        if tokens and not (min(tokens) >= 0 and max(tokens) <= limits.MAX_TOKEN):
            raise Malformed(f"{path} holds a token id outside 0 to 2^31-1", name="OUT_OF_RANGE")
        if self.ascending:
            require_ascending(tokens, path)


class ListOf(Field):
    """An array of one kind. ``key`` gives what must be strictly rising; ``distinct`` forbids repetition."""

    def __init__(self, item: Field, limit: int, *, key: Key | None = None, distinct: bool = False) -> None:
        self.item, self.limit, self.key, self.distinct = item, limit, key, distinct

    def check(self, value: object, path: str) -> None:
        items = exact(value, list, path)
        if len(items) > self.limit:
            raise LimitExceeded(f"{path} has more than {self.limit:,} entries", name="TOO_MANY_ENTRIES")
        for index, item in enumerate(items):
            self.item.check(item, f"{path}[{index}]")
        if self.distinct and len(set(items)) != len(items):
            raise Malformed(f"{path} names something twice", name="REPEATED")
        if self.key:
            require_ascending([self.key(item) for item in items], path)

    def pack(self, value: list[Any]) -> Value:
        return [self.item.pack(item) for item in value]

    def unpack(self, value: object, path: str) -> object:
        return [self.item.unpack(item, f"{path}[{index}]") for index, item in enumerate(exact(value, list, path))]


class Table(Field):
    """A closed table: exactly these fields, none missing, none more. Their order is the order of the JSON text."""

    def __init__(self, **fields: Field) -> None:
        self.fields = fields

    def check(self, value: object, path: str) -> None:
        table = self.require_fields(value, path)
        for name, field in self.fields.items():
            field.check(table[name], f"{path}.{name}")

    def pack(self, value: dict[str, Any]) -> Value:
        return {name: field.pack(value[name]) for name, field in self.fields.items()}

    def unpack(self, value: object, path: str) -> dict[str, Any]:
        table = self.require_fields(value, path)
        return {name: field.unpack(table[name], f"{path}.{name}") for name, field in self.fields.items()}

    def require_fields(self, value: object, path: str) -> dict[str, Any]:
        """The table itself, if it has exactly the right fields, whatever they hold."""
        table: dict[str, Any] = exact(value, dict, path)
        for name in table:
            if name not in self.fields:
                raise Malformed(f"{path} has the unknown field {show(name)}", name="UNKNOWN_FIELD")
        for name in self.fields:
            if name not in table:
                raise Malformed(f"{path} lacks the field '{name}'", name="MISSING_FIELD")
        return table


class TextMap(Field):
    """A small map from names to texts."""

    def __init__(self, name: Text, text: Text, limit: int) -> None:
        self.name, self.text, self.limit = name, text, limit

    def check(self, value: object, path: str) -> None:
        table = exact(value, dict, path)
        if len(table) > self.limit:
            raise LimitExceeded(f"{path} has more than {self.limit:,} entries", name="TOO_MANY_ENTRIES")
        for name, text in table.items():
            self.name.check(name, f"a name in {path}")
            self.text.check(text, f"{path}.{name}")


def require_ascending(items: list[Any], path: str) -> None:
    """Strictly rising order: a set has one spelling."""
    for left, right in itertools.pairwise(items):
        if not left < right:
            raise Malformed(f"{path} must be in strictly ascending order", name="NOT_ASCENDING")
