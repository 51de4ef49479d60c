"""Literals as some syntaxes have them for arguments: JSON's values with strings and names of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinetic.text.tools.reply import MAX_DEPTH, Incomplete, Malformed
from kinetic.text.tools.values import expect, expect_behind_space, plain_json, skip_space, token

WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ATOM = re.compile(r"[A-Za-z0-9+.-]{1,400}")

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)

ReadString = Callable[[str, int], tuple[str, int]]
"""(text, place behind the opening quote) -> (string, place behind the closing one)."""


@dataclass(frozen=True)
class Literals:
    """Lists, objects, numbers, JSON's or Python's words, and strings.

    ``quotes``: opening quote -> reader. ``name``: a name without quotes.
    """

    quotes: dict[str, ReadString]
    name: re.Pattern[str]

    def value(self, text: str, place: int, depth: int = 1) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise Malformed
        place = skip_space(text, place)
        if text.startswith("[", place):
            return self._list(text, place + 1, depth)
        if text.startswith("{", place):
            return self.members(text, place + 1, ":", "}", depth)
        return self._string(text, place) or _atom(text, place)

    def members(self, text: str, place: int, between: str, closing: str, depth: int = 0) -> tuple[dict[str, Any], int]:
        """Names and values with ``between`` in their middle, up to and with ``closing``; no name twice."""
        found: dict[str, Any] = {}
        place = skip_space(text, place)
        while not text.startswith(closing, place):
            place = skip_space(text, expect(text, place, ",")) if found else place
            name, place = self._string(text, place) or token(self.name, text, place)
            if name in found:
                raise Malformed
            found[name], place = self.value(text, expect_behind_space(text, place, between), depth + 1)
            place = _next_or_closing(text, place, closing)
        return found, place + len(closing)

    def _list(self, text: str, place: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        place = skip_space(text, place)
        while not text.startswith("]", place):
            place = expect(text, place, ",") if found else place
            item, place = self.value(text, place, depth + 1)
            found.append(item)
            place = _next_or_closing(text, place, "]")
        return found, place + 1

    def _string(self, text: str, place: int) -> tuple[str, int] | None:
        """A string, if one begins here."""
        for quote, read in self.quotes.items():
            if text.startswith(quote, place):
                return read(text, place + len(quote))
            if quote.startswith(text[place:]):
                raise Incomplete
        return None


def _next_or_closing(text: str, place: int, closing: str) -> int:
    """The place of a comma or of ``closing``, one of which must come."""
    place = skip_space(text, place)
    expect(text, place, ",", closing)
    return place


def _atom(text: str, place: int) -> tuple[Any, int]:
    """A number or a word."""
    word, end = token(_ATOM, text, place)
    if word in WORDS:
        return WORDS[word], end
    try:
        return plain_json(word), end
    except ValueError:
        raise Malformed from None


def python_string(quote: str) -> ReadString:
    r"""Reads a string as Python writes it, but newlines may stand in it, and of escapes it knows JSON's and ``\x``."""
    body = re.compile(rf"(?:[^{quote}\\]|\\.)*", re.DOTALL)

    def read(text: str, place: int) -> tuple[str, int]:
        inside, end = token(body, text, place)
        end = expect(text, end, quote) if text[end : end + 1] != "\\" else _cut_off()
        return _ESCAPE.sub(_unescaped, inside), end

    return read


def _cut_off() -> int:
    raise Incomplete  # a backslash ends the text


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    if code:
        return chr(int(code, 16))
    if escape[3] not in ESCAPES:
        raise Malformed
    return ESCAPES[escape[3]]


PYTHON = Literals({quote: python_string(quote) for quote in "\"'"}, re.compile(r"[A-Za-z_]\w{0,255}", re.ASCII))
