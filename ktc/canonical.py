"""The two encodings of a closed set of values: strict JSON in, deterministic CBOR in and out.

The closed set is: maps with text keys, arrays, integers within +-(2^53-1),
byte strings (CBOR only), Unicode text, booleans. Nothing else exists: no null,
no float, no tag. CBOR is RFC 8949 section 4.2.1, so one value has exactly one
byte string, and that string is what is hashed and signed.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias

import cbor2

from ktc import limits
from ktc.errors import LimitExceeded, Malformed

Value: TypeAlias = "dict[str, Value] | list[Value] | int | bytes | str | bool"


def read_json(data: bytes) -> Value:
    """Parse strict JSON; raises Malformed or LimitExceeded.

    Python's own reader takes NaN, floats for integers, integers of any size and
    the last of two equal keys; each of them is refused here.
    """
    _require_size(data)
    if data.startswith(b"\xef\xbb\xbf"):
        raise Malformed("the file begins with a byte order mark, and JSON here has none", name="BYTE_ORDER_MARK")
    _scan_json(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is not UTF-8", name="NOT_UTF8") from None
    value = _parse_json(text)
    require_closed(value, allow_bytes=False)
    return value


def encode(value: Value) -> bytes:
    """Deterministic CBOR of a value of the closed set; raises Malformed for any other."""
    require_closed(value, allow_bytes=True)
    # For text keys, cbor2's order (shorter first, then bytewise) is RFC 8949's bytewise order of encoded keys.
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, limit: int = limits.MAX_FILE_BYTES) -> Value:
    """Read deterministic CBOR of at most ``limit`` bytes; raises Malformed or LimitExceeded.

    Three nets, because each alone lets something through: a scan of the heads
    before anything is built, exact types afterwards, and re-encoding, which
    finds key order and trailing bytes.
    """
    _require_size(data, limit)
    _scan_cbor(data)
    try:
        value = cbor2.loads(data, allow_indefinite=False, allow_duplicate_keys=False, max_depth=limits.MAX_DEPTH + 1)
    except cbor2.CBORError as error:
        name = "DUPLICATE_KEY" if "Duplicate" in str(error) else "BAD_CBOR"
        raise Malformed(f"the CBOR cannot be read: {show(str(error), 100)}", name=name) from None
    require_closed(value, allow_bytes=True)
    if cbor2.dumps(value, canonical=True) != data:
        raise Malformed("the CBOR is not in its one deterministic form", name="NOT_CANONICAL")
    return value  # type: ignore[no-any-return]


def require_closed(value: object, *, allow_bytes: bool) -> None:
    """Exact types all the way down: a bool is not an int, a subclass is not its base."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is dict:
            _require_text_keys(item)
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
        elif kind is int:
            _require_integer(item)
        elif kind is str:
            require_unicode(item)
        elif kind is not bool and not (kind is bytes and allow_bytes):
            raise Malformed(f"a value of type {kind.__name__} has no place in this format", name="WRONG_TYPE")


def require_unicode(text: str) -> None:
    """Refuse lone surrogates: JSON can spell them, UTF-8 can't hold them."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Malformed("a text holds half of a surrogate pair", name="NOT_UNICODE") from None


def show(text: object, length: int = 40) -> str:
    """A quoted, escaped, shortened form of hostile text for one line of a message."""
    quoted = ascii(text)
    return quoted if len(quoted) <= length else quoted[: length - 3] + "..."


def _require_size(data: bytes, limit: int = limits.MAX_FILE_BYTES) -> None:
    if len(data) > limit:
        raise LimitExceeded(f"the file is larger than {limit:,} bytes", name="FILE_TOO_LARGE")


def _require_text_keys(table: dict[object, object]) -> None:
    for key in table:
        if type(key) is not str:
            raise Malformed(f"a map has a key of type {type(key).__name__}", name="WRONG_TYPE")
        require_unicode(key)


def _require_integer(number: int) -> None:
    if not -limits.MAX_INTEGER <= number <= limits.MAX_INTEGER:
        raise Malformed("an integer is outside +-(2^53-1)", name="INTEGER_TOO_LARGE")


# Strict JSON

# One string or one bracket. Possessive, and an unclosed string ends with the data: linear for any input.
_JSON_PARTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)


_JSON_BRACKETS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def _scan_json(data: bytes) -> None:
    """Bound depth and number of containers before the parser builds anything."""
    depth = containers = 0
    for part in _JSON_PARTS.finditer(data):
        step = _JSON_BRACKETS.get(part[0], 0)
        depth += step
        containers += step > 0
        _require_room(depth, containers)


def _require_room(depth: int, containers: int) -> None:
    if depth > limits.MAX_DEPTH:
        raise LimitExceeded(f"values are nested deeper than {limits.MAX_DEPTH}", name="TOO_DEEP")
    if containers > limits.MAX_CONTAINERS:
        raise LimitExceeded(f"more than {limits.MAX_CONTAINERS:,} arrays and maps", name="TOO_MANY_CONTAINERS")


def _parse_json(text: str) -> Value:
    try:
        return json.loads(  # type: ignore[no-any-return]
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_refuse_float,
            parse_constant=_refuse_float,
        )
    except json.JSONDecodeError as error:
        raise Malformed(f"line {error.lineno}, column {error.colno}: {error.msg}", name="BAD_JSON") from None


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Malformed(f"the key {show(twice)} stands twice in one object", name="DUPLICATE_KEY")
    return table


def _integer(text: str) -> int:
    if text == "-0":
        raise Malformed("-0 is not a spelling of 0", name="BAD_INTEGER")
    if len(text) > 17:
        raise Malformed("an integer is outside +-(2^53-1)", name="INTEGER_TOO_LARGE")
    return int(text)


def _refuse_float(text: str) -> NoReturn:
    raise Malformed(f"{show(text)} is a JSON float; this format writes decimals as strings", name="FLOAT")


# Deterministic CBOR

_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _OTHER = 2, 3, 4, 5, 6, 7
_FALSE, _TRUE = 0xF4, 0xF5


def _scan_cbor(data: bytes) -> None:
    """Walk all heads: closed types, shortest lengths, bounded depth, nothing past the end.

    It runs before the decoder, which would turn a tag into a compiled regular
    expression or a date while it reads.
    """
    position, containers = 0, 0
    due = [1]  # items still to come, per open container
    while due:
        if due[-1] == 0:
            due.pop()
            continue
        due[-1] -= 1
        major, argument, position = _read_head(data, position)
        if major in (_BYTES, _TEXT):
            position += argument
        elif major in (_ARRAY, _MAP):
            due.append(argument * (major - 3))  # a map holds a key and a value per entry
            containers += 1
            _require_room(len(due) - 1, containers)
        if position > len(data):
            raise Malformed("the CBOR ends inside a value", name="TRUNCATED")
    if position != len(data):
        raise Malformed(f"{len(data) - position} bytes follow the CBOR value", name="TRAILING_BYTES")


def _read_head(data: bytes, position: int) -> tuple[int, int, int]:
    """Major type, argument, and the position after the head."""
    if position >= len(data):
        raise Malformed("the CBOR ends inside a value", name="TRUNCATED")
    initial = data[position]
    major, short = initial >> 5, initial & 31
    if major == _TAG:
        raise Malformed("the CBOR holds a tag", name="TAG")
    if major == _OTHER and initial not in (_FALSE, _TRUE):
        raise Malformed("the CBOR holds a float, null or another simple value", name="SIMPLE_VALUE")
    if short < 24:
        return major, short, position + 1
    if short > 27:
        raise Malformed("the CBOR holds an indefinite or reserved length", name="INDEFINITE")
    size = 1 << (short - 24)
    after = position + 1 + size
    if after > len(data):
        raise Malformed("the CBOR ends inside a value", name="TRUNCATED")
    argument = int.from_bytes(data[position + 1 : after], "big")
    if argument < (24 if size == 1 else 1 << (4 * size)):
        raise Malformed("the CBOR spells a length or number longer than needed", name="NOT_CANONICAL")
    return major, argument, after
