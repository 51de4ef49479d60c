"""Reading words, names and JSON out of a text that may end anywhere.

Every reader takes (text, place), the place being behind what was read before.
Malformed is only raised for what no longer text could mend, else Incomplete.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from kinetic.text.tools.reply import NAME, Incomplete, Malformed

WORD_BEGUN = 9
"""Characters at the end of a text in which a word, a number or an escape of JSON may be cut off."""

_SPACE = re.compile(r"[ \t\r\n]*")


def skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def expect(text: str, place: int, *words: str) -> int:
    """The place behind the one of ``words`` that stands here."""
    for word in words:
        if text.startswith(word, place):
            return place + len(word)
    raise Incomplete if any(word.startswith(text[place:]) for word in words) else Malformed


def expect_behind_space(text: str, place: int, word: str) -> int:
    return expect(text, skip_space(text, place), word)


def token(pattern: re.Pattern[str], text: str, place: int) -> tuple[str, int]:
    """What ``pattern`` takes here, and the place behind it. At the end of the text it may go on."""
    found = pattern.match(text, place)
    if place == len(text) or (found and found.end() == len(text)):
        raise Incomplete
    if found is None:
        raise Malformed
    return found[0], found.end()


def tool_name(text: str, place: int) -> tuple[str, int]:
    return token(NAME, text, place)


def up_to(text: str, place: int, closing: str, most: int) -> tuple[str, int]:
    """The text before ``closing``, which begins within ``most`` characters, and the place behind it."""
    end = text.find(closing, place, place + most + len(closing))
    if end < 0:
        raise Malformed if len(text) >= place + most + len(closing) else Incomplete
    return text[place:end], end + len(closing)


def json_object(text: str, place: int) -> tuple[dict[str, Any], int]:
    """A JSON object by RFC 8259, no name twice, white space before it."""
    value, end = _json(text, expect_behind_space(text, place, "{") - 1)
    if not isinstance(value, dict):
        raise Malformed
    return value, end


def json_objects(text: str, place: int) -> tuple[list[dict[str, Any]], int]:
    """A list of one object or more, white space before it."""
    value, end = _json(text, expect_behind_space(text, place, "[") - 1)
    if not value or not all(isinstance(item, dict) for item in value):
        raise Malformed
    return value, end


def _json(text: str, place: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as problem:
        cut_off = problem.msg.startswith("Unterminated") or len(text) - problem.pos <= WORD_BEGUN
        raise (Incomplete if cut_off else Malformed) from None
    except (ValueError, RecursionError):  # no call in the end, but what kind of number it is may still be open
        raise Incomplete from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("the number is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def plain_json(text: str) -> Any:
    """What a whole text says in JSON. ValueError for any other, nested too deep included."""
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, 0))
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if skip_space(text, end) != len(text):
        raise ValueError("more follows")
    return value
