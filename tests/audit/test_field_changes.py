"""Every field of a receipt, changed alone: what it does to the ids, to an honest rerun, and under a pinned key.

Which part a field plays (question, answer, claim) is read from the table in FORMAT.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.run_vector import run_file
from ktc.errors import KtcError
from ktc.fields import Enum, Hex, Int, ListOf, Optional, Table, TextMap, Tokens, Unsigned64
from ktc.signature import key_pair
from receipts.encode import Receipt, read_receipt, to_cbor
from receipts.fields import Decimal
from receipts.identity import question_id, receipt_id
from receipts.schema import RECEIPT
from receipts.sign import sign_record
from tools.receipt_vectors import challenge, fields, proofs
from tools.receipt_vectors.build import OTHER_SEED, SEED, changed, draws, plain

FORMAT = (Path(__file__).resolve().parents[2] / "FORMAT.md").read_text(encoding="utf-8")
PARTS = dict(re.findall(r"^\| `([a-z_.0-9\[\]]+)` \|.*\| ([QAC-]) \|", FORMAT, re.MULTILINE))
PINNED = {"keys": {"alice": key_pair(SEED).public.hex()}}
COMMITS = [draw | {"commit": f"{at:02x}" * 8} for at, draw in enumerate(draws(1, 2, 3, 0, 6, 6))]
OTHER_DRAWS = draws(4, 4, 4, 4, 4, 4)
RECORDS = {"full": fields.full(), "challenge": challenge.answering("c0" * 32), "batch": proofs.placed(5, 2)}
OWN = {"full": "", "challenge": "challenge|sampling.seed|prompt|overrides.context|text", "batch": "parent|text|claims"}
"""Which fields of a record are changed: of the first all, of the others those that matter there."""


def leaves(field: Any, value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, kind, value) of everything that stands in a table, and of each list as a whole."""
    if isinstance(field, Table):
        for name, inner in field.fields.items():
            yield from leaves(inner, value[name], f"{path}.{name}".lstrip("."))
        return
    yield path, field, value
    if isinstance(field, ListOf) and isinstance(field.item, Table):
        for index, item in enumerate(value):
            yield from leaves(field.item, item, f"{path}.{index}")


def others(field: Any, value: Any) -> list[Any]:
    """Other values for a place: some that could stand there, and some that could not."""
    if isinstance(field, Optional):
        return ["", *others(field.kind, value or _something(field.kind))]
    if isinstance(field, Enum):
        return [*field.choices, value.upper(), "other", "", 1]
    if isinstance(field, Int):
        return [value + 1, value - 1, 0, 1, 2**31, 2**53, True, str(value), float(value), None]
    if isinstance(field, Unsigned64):
        return [str(int(value) + 1), "0", str(2**64 - 1), str(2**64), "-1", f"0{value}", int(value)]
    if isinstance(field, Decimal):
        return ["0.5", "0.25", "1", "0", "-1", f"{value}0", "1e0", "NaN", "inf", 0.5, 1]
    if isinstance(field, Hex):
        return [_flipped(value), value[:-2], value + "00", value.upper(), "", 0]
    if isinstance(field, Tokens):
        return [[*value, 5], value[:-1], [1, *value], value[::-1], [], [7], [True], [-1], ["1"], None]
    if isinstance(field, ListOf):
        return [value[:-1], [*value, *value[-1:]], value[::-1], [], [[]], None]
    if isinstance(field, TextMap):
        return [value | {"another": ""}, {}, {name: f"{text}!" for name, text in value.items()}, {"A": ""}, []]
    return [f"{value}x", f"x{value}", value[1:], value.upper(), "", f"{value}\n", 0, None]


def _something(field: Any) -> Any:
    """A value for a place that holds none."""
    if isinstance(field, Hex):
        return "01" * field.size
    if isinstance(field, Enum):
        return field.choices[0]
    return "0.75" if isinstance(field, Decimal) else "2026-01-01T00:00:00Z"


def _flipped(digits: str) -> str:
    return ("1" if digits[:1] == "0" else "0") + digits[1:]


def part_of(path: str) -> str:
    """Q, A, C or - of a field, a list having the part of what it holds."""
    name = re.sub(r"\.(\d+)", "[]", path)
    found = {part for known, part in PARTS.items() if known == name or known.startswith((f"{name}.", f"{name}[]"))}
    assert found, f"FORMAT.md has no field {name}"
    return "Q" if "Q" in found else found.pop()


def is_readable(record: Any) -> bool:
    try:
        read_receipt(plain(record))
    except KtcError:
        return False
    return True


def judged(record: Any, original: Any, *, signed_by: bytes = b"", keep: Any = (), options: Any = None) -> Any:
    """The verdict of an engine that draws other tokens wherever it is asked another question."""
    entries = [sign_record(record, signed_by)] if signed_by else list(keep)
    asked = is_readable(record) and question_id(record) == question_id(original)
    script = {"draws": COMMITS if asked else OTHER_DRAWS}
    return run_file(plain(record, entries), {"engine": script, "options": options or {}})


PLACES = [
    pytest.param(name, path, field, value, id=f"{name}-{path}")
    for name, record in RECORDS.items()
    for path, field, value in leaves(RECEIPT, record)
    if re.match(OWN[name], path)
]


def changes(name: str, path: str, field: Any, value: Any) -> Iterator[tuple[Any, Any, bool]]:
    """(original, changed, whether they mean the same) for each other value."""
    for other in others(field, value):
        yield RECORDS[name], changed(RECORDS[name], path, other), means(other) == means(value)


def means(value: Any) -> Any:
    """A value with its type; a decimal is the binary32 nearest to it, however it is spelt."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+\.[0-9]+", value):
        return struct.pack("<f", float(value))
    return type(value), value if not isinstance(value, list) else [means(item) for item in value]


def test_the_table_in_the_document_has_every_field():
    for path, _, _ in leaves(RECEIPT, RECORDS["full"]):
        part_of(path)
    assert set(PARTS.values()) == set("QAC-")


@pytest.mark.parametrize("name", RECORDS)
def test_the_originals_are_good(name):
    assert judged(RECORDS[name], RECORDS[name], signed_by=SEED, options=PINNED).exit_code == 0


@pytest.mark.parametrize(("name", "path", "field", "value"), PLACES)
def test_a_field_changed_alone(name, path, field, value):
    for original, other, is_same in changes(name, path, field, value):
        readable, part = is_readable(other), part_of(path)
        outcome = judged(other, original)
        if is_same:  # 0.50 for 0.5, or the value that stood there
            assert outcome.exit_code == 0 and readable
        elif not readable:
            assert outcome.exit_code in ((11, 13) if path == "version" else (11, 14)), outcome
        elif part == "Q":
            assert outcome.exit_code in (10, 11, 13), outcome
        elif part == "A" and (path != "logit_commit" or other["logit_commit"]):
            assert outcome.exit_code in (10, 11), outcome
        else:  # claims; and who leaves out all digests of logits claims less
            assert (part, outcome.exit_code) == ("A" if path == "logit_commit" else "C", 0), outcome


@pytest.mark.parametrize(("name", "path", "field", "value"), PLACES)
def test_ids_follow_the_parts(name, path, field, value):
    for original, other, is_same in changes(name, path, field, value):
        if is_readable(other):
            assert (receipt_id(other) == receipt_id(original)) == is_same
            is_asked_the_same = is_same or part_of(path) != "Q"
            assert (question_id(other) == question_id(original)) == is_asked_the_same


@pytest.mark.parametrize(("name", "path", "field", "value"), PLACES)
def test_under_a_pinned_key_no_change_passes(name, path, field, value):
    signature = sign_record(RECORDS[name], SEED)
    for original, other, is_same in changes(name, path, field, value):
        kept = judged(other, original, keep=[signature], options=PINNED)
        if is_same:
            assert kept.exit_code == 0
        elif not is_readable(other):
            assert kept.exit_code in ((11, 13) if path == "version" else (11, 14)), kept
        else:
            assert (kept.exit_code, kept.name) == (12, "BAD_SIGNATURE")
            anew = judged(other, original, signed_by=OTHER_SEED, options=PINNED)
            assert (anew.exit_code, anew.name) == (12, "UNTRUSTED_KEY")


@pytest.mark.parametrize(("name", "path", "field", "value"), PLACES)
def test_cbor_says_the_same(name, path, field, value):
    for original, other, _ in changes(name, path, field, value):
        if is_readable(other):
            script = {"draws": COMMITS if question_id(other) == question_id(original) else OTHER_DRAWS}
            in_cbor = run_file(to_cbor(Receipt(other, [])), {"engine": script})
            assert in_cbor == judged(other, original)
