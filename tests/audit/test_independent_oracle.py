"""Two readers, one document: ``ktc`` and ``conformance.independent_reader`` give every file the same exit code.

The second was written from FORMAT.md alone. Where they differ, one of them is
wrong or the document is not clear.
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest

from conformance import bundle_vectors
from conformance.bundle_vectors import base, file_bytes
from conformance.independent_reader import Refusal, check
from conformance.vector_files import read_vectors
from ktc.errors import KtcError
from ktc.verify import verify
from tools.bundle_vectors.build import DERIVATION, PROFILE, cbor, extra, field, named_file
from tools.bundle_vectors.forge import (
    KEYS,
    OTHER_SEED,
    SEED,
    SLOT,
    Part,
    array_record,
    forge,
    gguf,
    manifest_of,
    pack_slot,
    packed,
    parts,
    signature,
    value_record,
)

ASKING = {"keys", "trust", "min_release"}
"""Options that the independent reader does not have."""

VECTORS = [v for v in read_vectors(bundle_vectors.GROUP) if not ASKING & set(v.get("options", {}))]

ROUNDS = 100
"""Files of each kind; MANY of them where there is time."""
MANY = 3000

Mutate = Callable[[random.Random], bytes]


def answers(path: Path, *, sha256: bool = False) -> tuple[tuple[int, str], tuple[int, str]]:
    """Exit code and name from the project's reader, then from the other."""
    ours = theirs = (0, "INTACT")
    try:
        verify(path, sha256=sha256)
    except KtcError as error:
        ours = (error.exit_code, error.name)
    try:
        check(path, sha256=sha256)
    except Refusal as refusal:
        theirs = (refusal.exit_code, refusal.name)
    return ours, theirs


def test_vectors(tmp_path: Path) -> None:
    path, wrong = tmp_path / "vector.ktc", []
    for vector in VECTORS:
        path.write_bytes(file_bytes(vector["file"]))
        ours, theirs = answers(path, sha256=vector.get("options", {}).get("sha256", False))
        if not ours[0] == theirs[0] == vector["expect"]["exit_code"]:
            wrong.append((vector["id"], ours, theirs))
    assert wrong == []
    assert len(VECTORS) > 650


OF_FORM = {"WRONG_TYPE", "UNKNOWN_FIELD", "MISSING_FIELD", "OUT_OF_RANGE", "BAD_TEXT", "BAD_HEX", "UNKNOWN_WORD"}
OF_FORM |= {"NOT_ASCENDING", "NOT_CANONICAL", "HEADER_MISMATCH", "SLOT", "TOO_MANY_ENTRIES", "TOO_LONG", "BAD_CBOR"}
OF_FORM |= {
    "DUPLICATE_KEY",
    "TOO_DEEP",
    "TOO_MANY_CONTAINERS",
    "TAG",
    "SIMPLE_VALUE",
    "FLOAT",
    "INDEFINITE",
    "TRUNCATED",
}
OF_FORM |= {"TRAILING_BYTES", "INTEGER_TOO_LARGE", "NOT_UNICODE", "NOT_A_BUNDLE"}
"""Refusals of the steps B4 and B5."""


def agree(ours: tuple[int, str], theirs: tuple[int, str]) -> bool:
    """The same exit code; of several faults of form in one step, one too many and one malformed, either may be told."""
    one_step = {ours[0], theirs[0]} == {11, 14} and {ours[1], theirs[1]} <= OF_FORM
    return ours[0] == theirs[0] or one_step


# Files nobody thought of


FULL = field(
    sources=[named_file(), named_file("b.gguf")],
    profiles=[PROFILE],
    derivation=[DERIVATION],
    ext={"a": "b", "note": ""},
)
BASES = [
    base("plain.json"),
    base("signed.json"),
    forge(manifest=FULL, seeds=[SEED, OTHER_SEED]),
    forge([*parts(), extra()], header={"minor": 7}, manifest=FULL),
]
EDGES = [0, 1, 2, 7, 8, 23, 24, 0x38, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xF4, 0xF6, 0xF9, 0xFB, 0xFF]
"""Bytes that mean something in CBOR, in UTF-8 or as a number's end."""


def spoilt(source: random.Random, data: bytes, begin: int, end: int) -> bytes:
    """One to three bytes of a stretch are others, or there are more or fewer of them."""
    out = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        at = source.randrange(begin, end)
        kind = source.randrange(6)
        if kind < 2:
            out[at] ^= 1 << source.randrange(8)
        elif kind < 5:
            out[at] = source.choice(EDGES) if kind < 4 else source.randrange(256)
        elif at + 8 <= end:
            value = source.choice([0, 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1, source.randrange(2**16)])
            out[at : at + 8] = struct.pack(source.choice("<>") + "Q", value)
    return bytes(out)


def redressed(data: bytes) -> bytes:
    """The slot names what the manifest is now, and is unsigned."""
    manifest = manifest_of(data)
    return data[:-SLOT] + bytes(pack_slot(manifest, b"\x80")) if len(data) > SLOT else data


def any_byte(source: random.Random) -> bytes:
    data = source.choice(BASES)
    used = 64 + len(manifest_of(data))
    begin, end = source.choice([(0, 64), (64, used), (len(data) - SLOT, len(data) - SLOT + 400), (0, len(data))])
    return spoilt(source, data, begin, end)


def header(source: random.Random) -> bytes:
    """A header whose copy in the manifest has the same faults."""
    data = source.choice(BASES)
    head = spoilt(source, data[:64], 8, 64)
    return redressed(data.replace(data[:64], head))


def manifest_bytes(source: random.Random) -> bytes:
    data = source.choice(BASES)
    return redressed(spoilt(source, data, 64, 64 + len(manifest_of(data))))


def length(source: random.Random) -> bytes:
    """Cut, longer, or with two boundaries' worth exchanged."""
    data = source.choice(BASES)
    kind = source.randrange(3)
    if kind == 0:
        return data[: source.choice([source.randrange(len(data)), 4096 * source.randrange(9), source.randrange(99)])]
    if kind == 1:
        return data + bytes(source.choice([1, 512, 4096, SLOT]))
    one, other = (4096 * source.randrange(len(data) // 4096) for _ in range(2))
    out = bytearray(data)
    out[one : one + 4096], out[other : other + 4096] = data[other : other + 4096], data[one : one + 4096]
    return bytes(out)


VALUES: list[Any] = [0, 1, -1, 3, 4096, 2**31, 2**53 - 1, 2**53, 2**64 - 1, 2**64, True, False, None, 1.5, "", "a", "A"]
VALUES += [
    "gguf",
    "x" * 64,
    "x" * 65,
    "x" * 1025,
    "x" * 65537,
    "a\n",
    "a/b",
    "..",
    "\u2028",
    "\x85",
    "\u00e9",
    b"",
    b"x",
]
VALUES += [
    bytes(32),
    bytes(64),
    bytes(1025),
    [],
    [[]],
    {},
    {"a": ""},
    ["a"],
    ["b", "a"],
    "cpu",
    "any",
    "leaves",
    "tokenizer",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a table."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replace(source: random.Random, table: Any) -> None:
    """Something in a table is another, or gone, or there twice, or there is more."""
    *parents, last = source.choice(places(table))
    for key in parents:
        table = table[key]
    kind = source.randrange(8)
    value = copy.deepcopy(source.choice(VALUES))
    if kind == 0:
        del table[last]
    elif kind == 1 and isinstance(table, list):
        table.insert(last, source.choice([copy.deepcopy(table[last]), value]))
    elif kind == 1:
        table[source.choice(["path", "a", "z" * 30, "Name", 7])] = value
    elif kind == 2 and type(table[last]) is int:
        table[last] += source.choice([-4096, -1, 1, 4096, 2**32])
    elif kind == 3 and isinstance(table[last], (str, bytes)) and table[last]:
        table[last] = table[last][: source.randrange(len(table[last]))]
    elif kind == 4 and isinstance(table[last], list) and table[last]:
        table[last] = table[last] * source.choice([2, 65, 1025])
    else:
        table[last] = value


def manifest_values(source: random.Random) -> bytes:
    """A manifest of another content, in its right encoding; header and layout are as it says, or as they were."""

    def change(table: Any) -> None:
        again = random.Random(seed)  # the same each time that the layout is made
        for _ in range(again.choice([1, 1, 2, 3])):
            replace(again, table)

    seed = source.randrange(2**32)
    optional = [extra()] if source.randrange(3) == 0 else []
    return forge([*parts(), *optional], manifest=lambda table: (FULL(table), change(table)))


def encoding(source: random.Random) -> bytes:
    """A manifest of the right content, in another encoding."""
    seed = source.randrange(2**32)

    def edit(data: bytes) -> bytes:
        again = random.Random(seed)
        at = again.randrange(len(data))
        kind = again.randrange(4)
        if kind == 0:
            return data[:at] + data[at + 1 :]
        if kind == 1:
            return data[:at] + bytes([again.choice(EDGES)]) + data[at:]
        table = cbor2.loads(data)
        if kind == 2:  # another order
            names = list(table)
            again.shuffle(names)
            return bytes(cbor2.dumps({name: table[name] for name in names}))
        return bytes(cbor2.dumps(table, canonical=True)) + again.choice([b"", b"\0", b"\xf6", b"\xa0"])

    return forge(edit=edit, manifest=FULL)


def model(source: random.Random) -> bytes:
    """A model file of which something is wrong, listed with its right digests."""
    records = [*KEYS, value_record("x", 7, b"\1"), array_record("y", 5, 3, bytes(12)), array_record("z", 7, 2, b"\0\1")]
    source.shuffle(records)
    kind = source.randrange(4)
    if kind == 0:
        again = source.choice(records)
        records.insert(source.randrange(len(records)), spoilt(source, again, 0, len(again)))
    data = gguf(records, version=source.choice([2, 3, 3, 3]))
    if kind == 1:
        data = data[: source.randrange(1, len(data))]
    elif kind > 1:
        data = spoilt(source, data, 0, 400)
    chosen = parts(data)
    return forge(chosen if source.randrange(4) else [chosen[0], chosen[3]])


def records(source: random.Random) -> bytes:
    """Tokenizer, template or leaves that are not the model's, listed with their right digests."""
    chosen = parts()
    index = source.randrange(1, 4)
    data = chosen[index].data
    changed = [data + b"\0", data[:-1], data[1:], data * 2, spoilt(source, data, 0, len(data)), chosen[index - 1].data]
    chosen[index] = Part(chosen[index].kind, source.choice(changed))
    if source.randrange(4) == 0:
        source.shuffle(chosen)
    return forge(chosen)


def signed(source: random.Random) -> bytes:
    """Signatures of which something is wrong."""
    data = base("plain.json")
    entries: list[Any] = [signature(seed, manifest_of(data)) for seed in source.sample([SEED, OTHER_SEED], 2)]
    kind = source.randrange(3)
    if kind == 0:
        replace(source, entries)
    inner = packed(entries)
    if kind == 1:
        inner = spoilt(source, inner, 0, len(inner))
    change = cbor(inner, source.choice([None, None, None, len(inner) + 1, len(inner) - 1]))
    if kind == 2:
        entries[0]["signature"] = spoilt(source, entries[0]["signature"], 0, 64)
        entries[1]["public_key"] = spoilt(source, entries[1]["public_key"], 0, 32) if source.randrange(2) else bytes(32)
        change = cbor(packed(entries))
    return forge(slot=change) if len(inner) < SLOT - 36 else data


KINDS: list[Mutate] = [any_byte, header, manifest_bytes, length, manifest_values, encoding, model, records, signed]


def disagreements(mutate: Mutate, rounds: range, folder: Path) -> tuple[list[Any], set[int]]:
    """Rounds in which the two readers differ, and all exit codes that came of them."""
    path, wrong, codes = folder / "mutated.ktc", [], set()
    for number in rounds:
        path.write_bytes(mutate(random.Random(f"{mutate.__name__} {number}")))
        ours, theirs = answers(path)
        codes.add(ours[0])
        if not agree(ours, theirs):
            wrong.append((number, ours, theirs))
    return wrong, codes


@pytest.mark.parametrize("mutate", KINDS, ids=lambda mutate: mutate.__name__)
def test_random_changes(mutate: Mutate, tmp_path: Path) -> None:
    wrong, codes = disagreements(mutate, range(ROUNDS), tmp_path)
    assert wrong == []
    assert 11 in codes or 12 in codes


@pytest.mark.slow
@pytest.mark.parametrize("mutate", KINDS, ids=lambda mutate: mutate.__name__)
def test_many_random_changes(mutate: Mutate, tmp_path: Path) -> None:
    assert disagreements(mutate, range(ROUNDS, MANY), tmp_path)[0] == []
