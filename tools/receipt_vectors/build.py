"""What the cases are made of: the receipt they are changed from, keys, and short ways to say a change."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ktc import canonical
from ktc.digest import token_digest
from receipts.encode import Receipt, to_cbor
from receipts.identity import canonical_bytes, question_id, receipt_id
from receipts.schema import Record, new_record
from receipts.sign import sign_record

SEED, OTHER_SEED, THIRD_SEED = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
"""Secret keys known to everybody."""

PROFILE = "kinetic-1"
PIECES = [b"<end>", b" red", b" blue", b" green", b".", b"\xf0\x9f", b"\x98\xb8", b" one two"]
END = 0
PROMPT, OUTPUT, ANSWER = [3, 1, 4], [1, 2, 3, END], " red blue green"
SETTINGS = {"seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


class File(NamedTuple):
    name: str
    size: int
    blake3: str
    sha256: str


FILE = File("tiny.gguf", 123_456, "ab" * 32, "cd" * 32)


def draws(*tokens: int) -> list[dict[str, Any]]:
    """What the engine draws, with the second best token and its distance."""
    return [{"token": token, "runner_up": 2, "gap": 0.004} for token in tokens]


ENGINE: dict[str, Any] = {
    "profile": PROFILE,
    "architecture": "llama",
    "files": [FILE._asdict()],
    "pieces": [piece.hex() for piece in PIECES],
    "control": [END],
    "end_tokens": [END],
    "lacks": [],
    "draws": draws(*OUTPUT),
}
"""The made-up engine: base/engine.json."""

Expect = tuple[int, str, int]
"""Exit code, name of the reason, and the step of FORMAT.md that decides."""

OK: Expect = (0, "IDENTICAL", 14)
CONSISTENT = "signature consistent, signer unknown"


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    """One vector. ``file`` is its bytes, or a recipe where they are many."""

    id: str
    attack: Sequence[int]
    what: str
    file: bytes | dict[str, Any]
    expect: Expect
    options: Mapping[str, Any] = NOTHING
    engine: Mapping[str, Any] = NOTHING
    more: Mapping[str, Any] = NOTHING
    """What else is expected: ids, the canonical bytes, the position of a difference."""


def record(**changes: Any) -> Record:
    """The base receipt, other arguments of ``new_record`` in place of its own."""
    arguments: dict[str, Any] = {
        "profile": PROFILE,
        "architecture": "llama",
        "files": [FILE],
        "prompt": PROMPT,
        "output": OUTPUT,
        "text": ANSWER,
        "stop_reason": "end",
        "end_tokens": [END],
        "sampling": SETTINGS,
        "claims": {"engine_version": "0.1.0", "device_class": "cpu", "time": "2026-03-14T15:09:26Z"},
    }
    return new_record(**arguments | changes)


def changed(old: Any, path: str, value: Any) -> Any:
    """A copy with one dotted path set, such as ``model.files.0.size``; digests stay as they are."""
    copied = copy.deepcopy(old)
    table, last = _parent(copied, path)
    table[int(last) if isinstance(table, list) else last] = value
    return copied


def without(old: Any, path: str) -> Any:
    """A copy that lacks what stands at one dotted path."""
    copied = copy.deepcopy(old)
    table, last = _parent(copied, path)
    del table[int(last) if isinstance(table, list) else last]
    return copied


def _parent(table: Any, path: str) -> tuple[Any, str]:
    *parents, last = path.split(".")
    for name in parents:
        table = table[int(name) if isinstance(table, list) else name]
    return table, last


def with_output(old: Record, tokens: list[int]) -> Record:
    """Other output tokens with the digest that belongs to them: a careful forger's change."""
    return old | {"output": {"tokens": tokens, "digest": token_digest(tokens)}}


# Files


def plain(old: Any, entries: Any = ()) -> bytes:
    """A JSON file in one layout, whatever it says: no check of ours looks at it."""
    return document({"receipt": old, "signatures": list(entries) if isinstance(entries, tuple) else entries})


def document(value: Any) -> bytes:
    return (_layout(value, "") + "\n").encode("utf-8")


def _layout(value: Any, indent: str) -> str:
    """Tables, and arrays of them, over several lines; all else on one."""
    if not value or not isinstance(value, (dict, list)) or not _is_tall(value):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _layout(item, inner) for item in value) + f"\n{indent}]"
    rows = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_layout(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def _is_tall(value: Any) -> bool:
    return isinstance(value, dict) or any(isinstance(item, dict) for item in value)


def signed(old: Record, *seeds: bytes) -> bytes:
    """A JSON file signed by each of the seeds."""
    return plain(old, [sign_record(old, seed) for seed in seeds or (SEED,)])


def packed(old: Record, *seeds: bytes) -> bytes:
    """The file in CBOR."""
    return to_cbor(Receipt(old, [sign_record(old, seed) for seed in seeds]))


def edit(*replacements: str, of: bytes = b"") -> bytes:
    """The base, or another file, with texts replaced that stand there once: old, new, old, new ..."""
    text = (of or BASES["plain.json"]).decode("utf-8")
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return text.encode("utf-8", "surrogatepass")


def parts(*texts: str | tuple[str, int]) -> dict[str, Any]:
    """A file of texts, some of them many times."""
    return {"parts": [{"text": t} if isinstance(t, str) else {"text": t[0], "times": t[1]} for t in texts]}


# CBOR that our encoder would not write


class Raw(bytes):
    """Bytes put into CBOR as they are."""


class Pairs(list[tuple[Any, Any]]):
    """A map as a list of keys and values: in this order, with whatever repetition."""


def forge(value: Any) -> bytes:
    """CBOR as deterministic as the value: ``Raw`` and ``Pairs`` are taken at their word."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        value = Pairs(sorted(value.items(), key=lambda pair: canonical.encode(pair[0])))
    if isinstance(value, Pairs):
        return head(5, len(value)) + b"".join(forge(key) + forge(item) for key, item in value)
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(forge, value))
    return canonical.encode(value)


def head(major: int, argument: int) -> bytes:
    """First bytes of a CBOR item of a major type, as short as can be."""
    if argument < 24:
        return bytes([major << 5 | argument])
    power = next(power for power in range(4) if argument < 1 << (8 << power))
    return bytes([major << 5 | 24 + power]) + argument.to_bytes(1 << power, "big")


def forged(path: str, value: Any) -> bytes:
    """The base in CBOR with one place replaced; ``path`` begins at the envelope."""
    return forge(changed(canonical.decode(BASES["plain.cbor"]), path, value))


# What else a vector expects


def ids(old: Record) -> dict[str, Any]:
    return {"receipt_id": receipt_id(old), "question_id": question_id(old)}


def canonical_form(old: Record) -> dict[str, Any]:
    """The ids and the hashed bytes themselves."""
    return ids(old) | {"canonical": canonical_bytes(old).hex()}


BASES: dict[str, bytes] = {
    "plain.json": plain(record()),
    "plain.cbor": packed(record()),
    "signed.json": signed(record()),
    "signed.cbor": packed(record(), SEED),
}
"""Files that cases are changed from."""

FILES = BASES | {"engine.json": (json.dumps(ENGINE, indent=1) + "\n").encode("utf-8")}
"""Everything in the folder ``base``."""
