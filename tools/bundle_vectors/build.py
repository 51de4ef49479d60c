"""What the cases are made of: the bundles they are changed from, and short ways to say a change."""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tools.bundle_vectors.forge import LEAF, SEED, SLOT, Change, Part, forge, gguf, parts, public_key

Expect = tuple[int, str, str]
"""Exit code, name of the reason, and the step of FORMAT.md that decides."""

OK: Expect = (0, "INTACT", "B13")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    """One vector."""

    id: str
    attack: Sequence[int]
    what: str
    file: bytes
    expect: Expect
    options: Mapping[str, Any] = NOTHING
    more: Mapping[str, Any] = NOTHING
    """What else is expected: the manifest's digest, who signed, what was passed over, the leaf that is wrong."""
    base: str = "plain"
    unit: bytes = b""
    """Something that stands in the file many times."""


MARKS = (0, LEAF - 1, LEAF, 2 * LEAF + 77)
"""Where a model of three leaves is not zero: zeros are short to write down."""


def large_model(*, marks: Sequence[int] = MARKS, more: int = 100) -> bytes:
    """A model file of two leaves and ``more`` bytes, its header among them."""
    weights = bytearray(2 * LEAF + more)
    for number, at in enumerate(marks, 1):
        weights[at % len(weights)] = number
    model = gguf(data=bytes(weights))
    return model


LARGE = large_model()

BASES = {
    "plain": forge(),
    "signed": forge(seeds=[SEED]),
    "leaves": forge(parts(LARGE)),
}
"""Sound bundles: of all four kinds of sections; the same, signed by SEED; and one with a model of three leaves."""

ABOUT = {
    "plain": "A sound bundle of four sections: model file, tokenizer, template and leaves. Unsigned.",
    "signed": "The same, signed with the secret key 00 01 .. 1f.",
    "leaves": "A sound bundle whose model file has three leaves, mostly zeros. Unsigned.",
}

KEY = public_key(SEED)
PINNED = {"keys": {"alice": KEY.hex()}}


def malformed(name: str, step: str) -> Expect:
    return (11, name, step)


def entry(index: int, **changes: Any) -> Change:
    """Changes the entry of one section."""
    return lambda table: table["sections"][index].update(changes)


def field(**changes: Any) -> Change:
    """Changes fields of the manifest."""
    return lambda table: table.update(copy.deepcopy(changes))


def put(at: int, data: bytes) -> Change:
    """Writes bytes over others; ``at`` below 0 counts from the end."""

    def change(out: bytearray) -> None:
        begin = at if at >= 0 else len(out) + at
        out[begin : begin + len(data)] = data

    return change


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """A file with some bytes written over, and nothing following suit."""
    out = bytearray(data)
    put(at, new)(out)
    return bytes(out)


def cbor(data: bytes, length: int | None = None) -> Change:
    """Puts other signatures into the slot, or what is said to be signatures."""

    def change(tail: bytearray) -> None:
        tail[32:36] = struct.pack("<I", len(data) if length is None else length)
        tail[36:] = data + bytes(SLOT - 36 - len(data))

    return change


def extra(kind: str = "licence", data: bytes = b"do what you like", *, critical: bool = False) -> Part:
    """A section of a kind that this version does not know."""
    return Part(kind, data, critical)


def named_file(name: str = "a.gguf", **changes: Any) -> dict[str, Any]:
    """An entry of ``sources``."""
    return {"name": name, "size": 1, "blake3": bytes(32), "sha256": bytes(32)} | changes


PROFILE = {"device": "cpu", "isa": "avx2", "cores": 8, "threads": 8, "prompt_rows": 512}
DERIVATION = {"tool": "quantize", "tool_version": "1", "settings": "q4_0", "files": [named_file()]}
