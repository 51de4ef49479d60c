"""Traces: what every operation of one pass gave, to the bit, in a file; and where two of them part.

A trace is one value in canonical CBOR (ktc.canonical):

    {"format": "kinetic-trace", "version": 1,
     "profile", "engine_id", "device_class", "threads", "rows",    what computed, so many rows together
     "model", "adapters", "overrides",                     as in the receipt
     "receipt": its id, "token": N, "position": of the row,
     "input": token digest of all tokens up to the row,
     "logits": BLAKE3 of the row's logits by a pass that was not watched,
     "ops": [{"op", "weight", "layer", "shape", "digest", "values"}, ...]}

``values`` are the bytes of float32 in little-endian order, ``digest`` is their BLAKE3, ``shape`` is [1, width], and
``layer`` is -1 outside of the layers. A file takes 4 bytes for each number: 3 MB of a model of 0.5 B parameters,
15 MB of one of 8 B. Whoever has it knows numbers made from the prompt, even where the receipt withholds it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from blake3 import blake3

from kinetic.types import PROFILE
from ktc import canonical
from ktc.canonical import show
from ktc.errors import LimitExceeded, Malformed, Unverifiable
from ktc.files import read_bounded, write_atomic

FORMAT, VERSION = "kinetic-trace", 1

MAX_BYTES = 256 * 1024 * 1024
"""Of a file. It is in memory twice while it is read."""

MAX_OPS = 65_536
MAX_TEXT = 4_096
"""Characters of a text."""

TEXTS = ("format", "profile", "engine_id", "device_class", "receipt", "input", "logits")
NUMBERS = ("version", "threads", "rows", "token", "position")
KEYS = frozenset({*TEXTS, *NUMBERS, "model", "adapters", "overrides", "ops"})

IDENTICAL, DIFFERS = 0, 10

Table = dict[str, Any]


class Op(NamedTuple):
    """What one operation gave in the row that was traced."""

    op: str
    weight: str
    """Name of its first weight; "" without one."""
    layer: int
    """-1: none."""
    values: bytes
    """float32 [width], little-endian."""

    @property
    def width(self) -> int:
        return len(self.values) // 4

    @property
    def place(self) -> str:
        """In words."""
        where = f"layer {self.layer}" if self.layer >= 0 else "outside of the layers"
        return f"{self.op}{f' with {show(self.weight, 100)[1:-1]}' if self.weight else ''} ({where})"


class Traced(NamedTuple):
    """A trace: all but its operations as it stands in the file, and the operations."""

    head: Table
    ops: list[Op]


# --- files ---


def digest(values: bytes) -> bytes:
    """BLAKE3 of the bits."""
    return blake3(values).digest()


def encode(trace: Traced) -> bytes:
    """The bytes of its file. Raises LimitExceeded, or Malformed for a head that no file can hold."""
    ops: list[Any] = [
        {"op": op.op, "weight": op.weight, "layer": op.layer, "shape": [1, op.width], "digest": digest(op.values)}
        | {"values": op.values}
        for op in trace.ops
    ]
    size = sum(len(op.values) for op in trace.ops)
    data = canonical.encode({**trace.head, "ops": ops}) if size < MAX_BYTES else b""
    if not 0 < len(data) <= MAX_BYTES:
        message = f"the numbers of this pass take {size:,} bytes, and a trace has {MAX_BYTES:,} at most"
        raise LimitExceeded(message, name="TRACE_TOO_LARGE")
    return data


def write(path: str | os.PathLike[str], trace: Traced) -> int:
    """Puts the file there whole or not at all; returns its size. Raises FileProblem of ``ktc``, and as ``encode``."""
    data = encode(trace)
    write_atomic(os.path.realpath(path), data)
    return len(data)


def read(path: str | os.PathLike[str]) -> Traced:
    """A trace, checked to the last digest. Raises FileProblem, Malformed or LimitExceeded of ``ktc``."""
    try:
        return parse(read_bounded(path, MAX_BYTES))
    except Malformed as error:
        raise Malformed(f"{os.fspath(path)}: {error}", name=error.name) from error


def parse(data: bytes) -> Traced:
    """The same of its bytes."""
    value: Any = canonical.decode(data, MAX_BYTES)
    if type(value) is not dict or value.get("format") != FORMAT:
        raise Malformed("this is no trace: `kinetic trace RECEIPT --token N -o FILE` makes one", name="NOT_A_TRACE")
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise Malformed(f"a trace of version {show(value.get('version'))}: this build reads version 1", name="VERSION")
    if value.keys() != KEYS:
        wrong = sorted(value.keys() ^ KEYS)[0]
        raise Malformed(f"the trace has too many or too few keys: {show(wrong)}", name="BAD_TRACE")
    for key in TEXTS:
        _require(type(value[key]) is str and len(value[key]) <= MAX_TEXT, key)
    for key in NUMBERS:
        _require(type(value[key]) is int and value[key] >= 0, key)
    _require(type(value["model"]) is dict and type(value["overrides"]) is dict, "model or overrides")
    _require(type(value["adapters"]) is list, "adapters")
    _require_model(value["model"], value["adapters"])
    _require(type(value["ops"]) is list and 0 < len(value["ops"]) <= MAX_OPS, "ops")
    ops = [_op(entry) for entry in value.pop("ops")]
    return Traced(value, ops)


def _require(is_right: bool, key: str) -> None:
    if not is_right:
        raise Malformed(f"the trace's {key} can't be what it says", name="BAD_TRACE")


def _require_model(model: Table, adapters: Sequence[Any]) -> None:
    files: Any = model.get("files")
    _require(type(files) is list and len(files) > 0 and type(model.get("architecture")) is str, "model")
    for file in [*files, *adapters]:
        _require(type(file) is dict, "model")
        _require(type(file.get("size")) is int and all(type(file.get(key)) is str for key in HASHES), "model")


def _op(entry: Any) -> Op:
    keys = {"op", "weight", "layer", "shape", "digest", "values"}
    _require(type(entry) is dict and entry.keys() == keys, "ops")
    op, weight, layer, values = (entry[key] for key in ("op", "weight", "layer", "values"))
    _require(all(type(text) is str and len(text) <= MAX_TEXT for text in (op, weight)), "ops")
    _require(op.isascii() and op.isidentifier() and type(layer) is int and layer >= -1, "ops")
    _require(type(values) is bytes and len(values) % 4 == 0 and len(values) > 0, "ops")
    _require(entry["shape"] == [1, len(values) // 4], "ops")
    if entry["digest"] != digest(values):
        raise Malformed(f"the values of {op} don't have the digest beside them", name="DIGEST")
    return Op(op, weight, layer, values)


# --- comparing ---

HASHES = ("blake3", "sha256")


REMEMBERING = ("attend", "short_conv", "scan", "delta")
"""Operations that read keys, values or a state of earlier tokens."""


class Difference(NamedTuple):
    """Where two traces part. ``op`` is the number of the operation, -1 if all agree."""

    sentence: str
    exit_code: int = IDENTICAL
    op: int = -1
    name: str = ""
    weight: str = ""
    layer: int = -1
    element: int = -1
    bits: tuple[str, str] = ("", "")
    """The two float32 there, in hex."""
    different: int = 0
    """Elements of this operation that differ."""
    width: int = 0


def compare(first: Traced, second: Traced) -> Difference:
    """The first operation and element whose bits differ.

    Raises Unverifiable for traces of different questions, and for programs that compute by other operations as long
    as all before them agree.
    """
    _require_comparable(first.head, second.head)
    for number, (a, b) in enumerate(zip(first.ops, second.ops, strict=False)):
        if a[:3] != b[:3] or a.width != b.width:
            raise Unverifiable(
                f"operation {number} is {a.place} of {a.width} elements in one trace and {b.place} of {b.width} in the"
                " other, and all before it agree: they are of different programs",
                name="OTHER_OPS",
            )
        if a.values != b.values:
            return _difference(number, len(first.ops), a, b)
    if len(first.ops) != len(second.ops):
        counts = f"{len(first.ops)} and {len(second.ops)}"
        raise Unverifiable(f"the traces have {counts} operations, and all that both have agree", name="OTHER_OPS")
    return _whole(first, second)


def _whole(first: Traced, second: Traced) -> Difference:
    """All operations agree; perhaps not the passes that nobody watched."""
    count = len(first.ops)
    if first.head["logits"] == second.head["logits"]:
        return Difference(f"all {count} operations agree to the bit, and so do the logits of the unwatched pass")
    return Difference(
        f"all {count} operations agree to the bit, but the logits of the passes that were not watched differ: what is"
        " wrong are instructions that are fused there, or rows computed together",
        DIFFERS,
        count,
        "logits",
    )


def _require_comparable(first: Table, second: Table) -> None:
    for what, of in (
        ("profiles", lambda head: head["profile"]),
        ("models", lambda head: (head["model"]["architecture"], _claims(head["model"]["files"]))),
        ("adapters", lambda head: [(file.get("scale"), *_claims([file])) for file in head["adapters"]]),
        ("settings", lambda head: {key: value for key, value in head["overrides"].items() if key != "context"}),
        ("tokens", lambda head: head["input"]),
    ):
        if of(first) != of(second):
            raise Unverifiable(f"the traces are of different {what}: they say nothing about each other", name="OTHER")


def _claims(files: Sequence[Table]) -> list[tuple[Any, ...]]:
    return [(file["size"], *(file[key] for key in HASHES)) for file in files]


def _difference(number: int, count: int, a: Op, b: Op) -> Difference:
    words = [struct.unpack(f"<{op.width}I", op.values) for op in (a, b)]
    elements = [at for at, (x, y) in enumerate(zip(*words, strict=True)) if x != y]
    element = elements[0]
    bits = [f"{word[element]:08x}" for word in words]
    values = [struct.unpack("<f", struct.pack("<I", word[element]))[0] for word in words]
    before = f"the {number} before it agree" if number != 1 else "the one before it agrees"
    sentence = (
        f"operation {number} of {count}, {a.place}, element {element}: 0x{bits[0]} ({values[0]:.9g}) and"
        f" 0x{bits[1]} ({values[1]:.9g}); {len(elements)} of its {a.width} elements differ, {before}"
    )
    if number == 0:
        sentence = sentence.removesuffix(f", {before}")
    if a.op in REMEMBERING:
        sentence += "; it also reads what earlier tokens left, which may be what differs"
    return Difference(
        sentence, DIFFERS, number, a.op, a.weight, a.layer, element, (bits[0], bits[1]), len(elements), a.width
    )


def header(**facts: Any) -> Table:
    """All of a trace but its operations."""
    return {"format": FORMAT, "version": VERSION, "profile": PROFILE} | facts
