"""Receipt files: JSON that people read, CBOR that is hashed; both hold the same receipt and signatures.

A file is a table of two fields, ``receipt`` and ``signatures``. Which encoding
it has is told by its first byte, never by its name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ktc import canonical
from ktc.errors import LimitExceeded, Malformed
from ktc.fields import Field, ListOf, Table
from ktc.files import read_bounded, write_atomic
from receipts import kinds
from receipts.checks import check_answer, check_record
from receipts.identity import canonical_bytes, challenge_seed, question_id, receipt_id
from receipts.schema import ENVELOPE, RECEIPT, SIGNATURES, Record, require_version

__all__ = [
    "Receipt",
    "canonical_bytes",
    "challenge_seed",
    "question_id",
    "read_file",
    "read_receipt",
    "receipt_id",
    "to_cbor",
    "to_json",
    "write_receipt",
]

_WIDTH, _SHORT = 110, 80
"""Characters of a wrapped line of JSON, and of a table or list that stays on one line."""

_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that JSON may hold bare but that steer a terminal or reorder a line."""


class Receipt(NamedTuple):
    """A receipt file's content, both parts in their JSON form."""

    record: Record
    signatures: list[dict[str, str]]


def read_receipt(source: str | os.PathLike[str] | bytes) -> Receipt:
    """Read a receipt from a path, or from the bytes of a file, in either encoding.

    Its form and its question are checked. Whether the answer agrees with itself
    (``checks.check_answer``) and whether signatures hold (``receipts.sign``) is
    judged apart. Raises any KtcError.
    """
    data = source if isinstance(source, bytes) else read_file(source)  # step 1 of FORMAT.md
    _require_no_bundle(data)
    is_cbor = data[:1] and 0xA0 <= data[0] <= 0xBF  # a CBOR map; no JSON text begins so
    try:
        return _from_cbor(data) if is_cbor else _checked(_from_json(data))  # step 2
    except Malformed as error:
        if kind := kinds.other_kind(data):
            raise Malformed(kinds.sentence(kind), name=error.name) from None
        raise


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a receipt's file; of one over the limit it is still said if it is a bundle. Raises any KtcError."""
    try:
        return read_bounded(path)
    except LimitExceeded:
        with suppress(OSError), open(path, "rb") as file:
            _require_no_bundle(file.read(16))
        raise


def _require_no_bundle(data: bytes) -> None:
    if kinds.is_bundle(data):
        raise Malformed(kinds.sentence(kinds.BUNDLE), name="NOT_A_RECEIPT")


def _from_json(data: bytes) -> Any:
    """The JSON of a file, whatever it says. What is no JSON at all is said to be no receipt."""
    if not data:
        raise Malformed("the file is empty", name="BAD_JSON")
    try:
        return canonical.read_json(data)
    except Malformed as error:
        if error.name in ("BAD_JSON", "NOT_UTF8"):
            raise Malformed(f"this is not a receipt: {error}", name=error.name) from None
        raise


def write_receipt(
    path: str | os.PathLike[str], record: Record, signatures: Sequence[dict[str, str]] = (), *, form: str = "json"
) -> None:
    """Check a receipt whole, then put it under ``path`` at one stroke. ``form`` is "json" or "cbor"."""
    receipt = _checked({"receipt": record, "signatures": list(signatures)})
    check_answer(record)
    data = to_cbor(receipt) if form == "cbor" else to_json(receipt).encode("utf-8")
    read_receipt(data)  # what could not be read back, for its size say, is not written
    write_atomic(path, data)


def to_cbor(receipt: Receipt) -> bytes:
    """Deterministic CBOR of the whole file."""
    return canonical.encode(ENVELOPE.pack({"receipt": receipt.record, "signatures": receipt.signatures}))


def to_json(receipt: Receipt) -> str:
    """JSON text, fields in the schema's order, token arrays on wrapped lines."""
    return _pretty(_in_order(ENVELOPE, {"receipt": receipt.record, "signatures": receipt.signatures}), "") + "\n"


def _checked(value: object) -> Receipt:
    envelope = ENVELOPE.require_fields(value, "the file")  # step 3
    record = check_record(envelope["receipt"])
    SIGNATURES.check(envelope["signatures"], "signatures")
    return Receipt(record, envelope["signatures"])


def _from_cbor(data: bytes) -> Receipt:
    envelope = ENVELOPE.require_fields(canonical.decode(data), "the file")  # steps 2 and 3
    require_version(envelope["receipt"])
    record = RECEIPT.unpack(envelope["receipt"], "receipt")
    receipt = _checked({"receipt": record, "signatures": SIGNATURES.unpack(envelope["signatures"], "signatures")})
    if to_cbor(receipt) != data:  # a second bit pattern of one decimal, such as -0
        raise Malformed("the CBOR is not the canonical form of its receipt", name="NOT_CANONICAL")
    return receipt


def _in_order(field: Field, value: Any) -> Any:
    """The same value with every table's fields in the schema's order."""
    if isinstance(field, Table):
        return {name: _in_order(inner, value[name]) for name, inner in field.fields.items()}
    if isinstance(field, ListOf):
        return [_in_order(field.item, item) for item in value]
    return value


def _pretty(value: Any, indent: str) -> str:
    """JSON text of a value whose first line is already indented."""
    line = _one_line(value)
    is_flat = not isinstance(value, (dict, list)) or not value
    if is_flat or (indent and len(indent) + len(line) <= _SHORT and not _holds_tables(value)):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        body = ",\n".join(f"{inner}{_one_line(key)}: {_pretty(item, inner)}" for key, item in value.items())
        return f"{{\n{body}\n{indent}}}"
    if _holds_tables(value):
        body = ",\n".join(f"{inner}{_pretty(item, inner)}" for item in value)
    else:
        body = ",\n".join(inner + line for line in _lines([_one_line(item) for item in value], _WIDTH - len(inner)))
    return f"[\n{body}\n{indent}]"


def _lines(items: list[str], width: int) -> Iterator[str]:
    """As many items to a line as fit."""
    line: list[str] = []
    room = width
    for item in items:
        if line and len(item) + 2 > room:
            yield ", ".join(line)
            line, room = [], width
        line.append(item)
        room -= len(item) + 2
    yield ", ".join(line)


def _holds_tables(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, (dict, list)) and item for item in items)


def _one_line(value: Any) -> str:
    if type(value) is int:
        return str(value)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
