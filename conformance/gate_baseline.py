"""The baseline of a gate: which receipts must be given again, to the bit, and which speeds at least.

    {"format": "kinetic gate 1",
     "models": [{"blake3": ..., "name": ..., "size": ..., "pull": ...}],
     "receipts": [{"file": ..., "blake3": ..., "opening": ..., "model": ..., "profile": ..., "engine": ...,
                   "tokens": ..., "digest": ..., "commitment": ...}],
     "bench": [...]}

Strict JSON as of receipts, without floats. Files are named relative to the baseline, with ``/``. Each receipt is
known by the BLAKE3 of its bytes; what it promises stands beside that, so that a file that changed can be told from
one whose answer did. A baseline depends on receipts and records alone: the same ones give the same bytes everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

from conformance.gate_bench import EXPECTATION, expectations
from kinetic.api.gate import pull_name
from ktc import canonical
from ktc.errors import FileProblem, KtcError, Malformed, Unverifiable
from ktc.fields import Enum, Hex, Int, ListOf, Optional, Table, Text, exact
from ktc.files import read_bounded
from receipts import audit, checks, encode, kinds, sign
from receipts.schema import FILE, LABEL, Record

FORM = "kinetic gate 1"

LOGITS = b"kinetic gate logits v1\0"
"""Domain of the digest over all digests of logits of one answer."""

MOST = 50_000
"""Receipts of one baseline: days of work."""

Entry: TypeAlias = dict[str, Any]

PATH = Text(4096, pattern=r"[^\x00-\x1f\x7f-\x9f/\\][^\x00-\x1f\x7f-\x9f\\]*")

MODEL = Table(blake3=Hex(), name=FILE.fields["name"], size=Int(0), pull=LABEL)

RECEIPT = Table(
    file=PATH,
    blake3=Hex(),  # of the file's bytes
    opening=Optional(PATH),  # of a prompt that was withheld
    model=Hex(),  # BLAKE3 of the model's first file
    profile=LABEL,
    engine=LABEL,  # that the receipt claims; "" where it claims none
    tokens=Int(0),  # of the output
    digest=Hex(),  # of those tokens, as in the receipt
    commitment=Optional(Hex()),  # over the digests of the logits; "" where the receipt has none
)

BASELINE = Table(
    format=Enum(FORM),
    models=ListOf(MODEL, MOST, key=lambda entry: entry["blake3"]),
    receipts=ListOf(RECEIPT, MOST, key=lambda entry: entry["file"]),
    bench=ListOf(EXPECTATION, MOST),
)


class Baseline(NamedTuple):
    """A baseline file as it was read."""

    path: str
    models: dict[str, Entry]
    """By BLAKE3."""
    receipts: list[Entry]
    bench: list[Entry]

    def place(self, file: str) -> str:
        """The path of a file that the baseline names."""
        return os.path.normpath(os.path.join(os.path.dirname(self.path), *file.split("/")))

    def model_name(self, blake3: str) -> str:
        return str(self.models.get(blake3, {}).get("name", ""))


# --- reading ---


def read(path: str) -> Baseline:
    """Raises any KtcError; the sentence names the file and says how to get a baseline."""
    if not os.path.lexists(path):
        raise FileProblem(
            f"there is no baseline {path}: `kinetic gate --write -o {path} RECEIPT...` makes one", name="NO_BASELINE"
        )
    data = read_bounded(path)
    try:
        table = _checked(canonical.read_json(data))
    except KtcError as error:
        raise type(error)(f"{path} is no baseline of `kinetic gate`: {error}", name=error.name) from error
    return Baseline(path, {entry["blake3"]: entry for entry in table["models"]}, table["receipts"], table["bench"])


def _checked(value: object) -> Entry:
    table: Entry = exact(value, dict, "the file")
    form = table.get("format")
    if isinstance(form, str) and form != FORM and form.startswith("kinetic gate "):
        raise Unverifiable(f"its form is {canonical.show(form)}, and only '{FORM}' is known here", name="VERSION")
    BASELINE.check(table, "baseline")
    if not table["receipts"] and not table["bench"]:
        raise Malformed("it promises nothing", name="EMPTY")
    return table


# --- writing ---


def make(path: str, names: Sequence[str], records: Sequence[Any]) -> Entry:
    """The baseline at ``path`` of the receipts that ``names`` stand for (files, folders, patterns), and of records.

    Each receipt must hold by itself; none is rerun. Raises any KtcError, whose message names the file.
    """
    folder = os.path.dirname(os.path.abspath(path))
    models: dict[str, Entry] = {}
    entries: dict[str, Entry] = {}
    for source in audit.find_files(names):
        data = encode.read_file(source.path)
        if kinds.other_kind(data) and not source.is_named:
            continue
        record = _read(source.path, data)
        entry = entry_of(record, data, _relative(source.path, folder), _opening(source.path, record, folder))
        entries[entry["file"]] = entry
        models[entry["model"]] = _model(record)
    bench, measured = expectations(records)
    models |= {blake3: about for blake3, about in measured.items() if blake3 not in models}
    for about in models.values():
        about["pull"] = pull_name(about["blake3"])
    return _checked(
        {
            "format": FORM,
            "models": [models[blake3] for blake3 in sorted(models)],
            "receipts": [entries[file] for file in sorted(entries)],
            "bench": bench,
        }
    )


def to_json(table: Entry) -> str:
    return json.dumps(table, ensure_ascii=False, indent=2) + "\n"


def entry_of(record: Record, data: bytes, file: str, opening: str = "") -> Entry:
    """What a baseline says of a receipt with these bytes."""
    return {
        "file": file,
        "blake3": blake3(data).hexdigest(),
        "opening": opening,
        "model": record["model"]["files"][0]["blake3"],
        "profile": record["profile"],
        "engine": record["claims"]["engine_id"],
        "tokens": len(record["output"]["tokens"]),
        "digest": record["output"]["digest"],
        "commitment": _commitment(record),
    }


def _commitment(record: Record) -> str:
    rows = record["logit_commit"]
    return blake3(LOGITS + b"".join(map(bytes.fromhex, rows))).hexdigest() if rows else ""


def _read(path: str, data: bytes) -> Record:
    try:
        receipt = encode.read_receipt(data)
        sign.check_signatures(*receipt)
        checks.check_answer(receipt.record)
    except KtcError as error:
        raise type(error)(f"{path}: {error}", name=error.name) from error
    return receipt.record


def _model(record: Record) -> Entry:
    file = record["model"]["files"][0]
    size = sum(part["size"] for part in record["model"]["files"])
    return {"blake3": file["blake3"], "name": file["name"], "size": size, "pull": ""}


def _opening(path: str, record: Record, folder: str) -> str:
    """Where the opening of a withheld prompt lies, if it is beside the receipt under the name that `run` gives it."""
    place = os.path.splitext(path)[0] + ".opening.json"
    return _relative(place, folder) if record["prompt"]["commitment"] and os.path.isfile(place) else ""


def _relative(path: str, folder: str) -> str:
    name = os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
    try:
        PATH.check(name, "the name of a receipt")
    except KtcError as error:
        raise Malformed(f"{path}: a baseline can't name this file", name=error.name) from error
    return name
