"""A tiny bundle, and broken ones on purpose: written from FORMAT.md, not by ``ktc.writer``, and without NumPy.

path.write_bytes(forge())                                          # a sound bundle
path.write_bytes(forge(manifest=lambda table: table.update(x=1)))  # signed all the same
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import cbor2
from blake3 import blake3

from ktc.signature import key_pair, sign

SEED, OTHER_SEED = bytes(range(32)), bytes(range(1, 33))
"""Secret keys, known to everybody."""

SLOT, LEAF = 16_384, 1 << 20
PAYLOAD_TYPE = "application/vnd.kinetic.bundle+cbor"
MAGIC = bytes.fromhex("894b54430d0a1a0a")

Change = Callable[[Any], object]
"""Changes what it is given in place."""


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def text_record(name: str, value: str) -> bytes:
    return string(name) + struct.pack("<I", 8) + string(value)


def number_record(name: str, value: int) -> bytes:
    return string(name) + struct.pack("<II", 4, value)


def texts_record(name: str, values: Iterable[str]) -> bytes:
    items = [string(value) for value in values]
    return string(name) + struct.pack("<IIQ", 9, 8, len(items)) + b"".join(items)


TEMPLATE = text_record("tokenizer.chat_template", "{{ messages }}")
TOKENS = texts_record("tokenizer.ggml.tokens", ["<end>", " red", " blue"])
MODEL = text_record("tokenizer.ggml.model", "gpt2")
KEYS = (text_record("general.architecture", "llama"), TEMPLATE, TOKENS, number_record("llama.block_count", 1), MODEL)
TOKENIZER = MODEL + TOKENS


def gguf(keys: Iterable[bytes] = KEYS, data: bytes = b"weights!" * 9, *, version: int = 3) -> bytes:
    """A model file of one tensor of bytes."""
    records = list(keys)
    tensor = string("token_embd.weight") + struct.pack("<IQiQ", 1, len(data), 24, 0)
    head = struct.pack("<4sIQQ", b"GGUF", version, 1, len(records)) + b"".join(records) + tensor
    return head + bytes(-len(head) % 32) + data


class Part(NamedTuple):
    """A section to be: its content, and what the manifest says of it."""

    kind: str
    data: bytes
    critical: bool = True


def leaf_list(model: bytes) -> bytes:
    pieces = [model[at : at + LEAF] for at in range(0, len(model), LEAF)]
    return b"".join(
        blake3(b"kinetic leaf v1\0" + struct.pack("<Q", index) + piece).digest() for index, piece in enumerate(pieces)
    )


def parts(model: bytes | None = None) -> list[Part]:
    """All four kinds."""
    model = gguf() if model is None else model
    return [
        Part("gguf", model),
        Part("tokenizer", TOKENIZER),
        Part("template", TEMPLATE),
        Part("leaves", leaf_list(model)),
    ]


def forge(
    sections: Iterable[Part] | None = None,
    *,
    manifest: Change | None = None,
    header: Mapping[str, int] | None = None,
    content: Change | None = None,
    slot: Change | None = None,
    seeds: Iterable[bytes] = (),
) -> bytes:
    """A bundle's bytes. ``manifest`` changes the table before it is encoded, ``header`` fields of the header and of
    its copy, ``content`` the finished bytes before the slot, ``slot`` the slot; what depends on them follows suit."""
    chosen = parts() if sections is None else list(sections)
    table, size = _settled(chosen, manifest, header or {})
    data = cbor2.dumps(table, canonical=True)
    out = bytearray(size)
    out[:64] = _header(size, len(data), header or {})
    out[64 : 64 + len(data)] = data
    for part, (begin, end) in zip(chosen, _places(chosen, len(data)), strict=True):
        out[begin:end] = part.data
    if content:
        content(out)
    tail = _slot(data, seeds)
    if slot:
        slot(tail)
    out[-SLOT:] = tail
    return bytes(out)


def repacked(data: bytes, manifest: Change, seeds: Iterable[bytes] = ()) -> bytes:
    """Another bundle's bytes with its manifest changed (not in length), and signed anew."""
    length = int.from_bytes(data[32:40], "little")
    table = cbor2.loads(data[64 : 64 + length])
    manifest(table)
    changed = cbor2.dumps(table, canonical=True)
    assert len(changed) == length
    return data[:64] + changed + data[64 + length : -SLOT] + _slot(changed, seeds)


def _settled(chosen: list[Part], change: Change | None, fields: Mapping[str, int]) -> tuple[dict[str, Any], int]:
    """The manifest as it will stand, and the size of the file."""
    length, found, size = -1, 0, 0
    table: dict[str, Any] = {}
    while length != found:
        length = found
        places = _places(chosen, length)
        size = _boundary(places[-1][1] if places else 64 + length) + SLOT
        table = _table(chosen, places)
        table["header"] = _header(size, length, fields)
        if change:
            change(table)
        found = len(cbor2.dumps(table, canonical=True))
    return table, size


def _table(chosen: list[Part], places: list[tuple[int, int]]) -> dict[str, Any]:
    entries = [
        {
            "name": part.kind,
            "kind": part.kind,
            "critical": part.critical,
            "offset": begin,
            "length": len(part.data),
            "blake3": blake3(part.data).digest(),
            "sha256": sha256(part.data).digest() if part.kind == "gguf" else "",
        }
        for part, (begin, _) in zip(chosen, places, strict=True)
    ]
    base = {"type": "kinetic-bundle", "version": 1, "name": "tiny", "release": 3, "architecture": "llama"}
    lists: dict[str, Any] = {"sources": [], "profiles": [], "derivation": [], "ext": {}, "crit": []}
    return base | {"file": "tiny.gguf", "sections": entries} | copy.deepcopy(lists)


def _places(chosen: list[Part], manifest_length: int) -> list[tuple[int, int]]:
    end, found = 64 + manifest_length, []
    for part in chosen:
        begin = _boundary(end)
        end = begin + len(part.data)
        found.append((begin, end))
    return found


def _boundary(position: int) -> int:
    return (position + 4095) // 4096 * 4096


def _header(size: int, manifest_length: int, changes: Mapping[str, int]) -> bytes:
    fields = {"major": 1, "minor": 0, "flags": 0, "size": size, "at": 64, "length": manifest_length, "rest": 0}
    values = {name: value % 2**64 for name, value in (fields | dict(changes)).items()}
    rest = values.pop("rest")
    return MAGIC + struct.pack("<HHIQQQ", *values.values()) + struct.pack("<QQQ", 0, 0, rest)


def _slot(manifest: bytes, seeds: Iterable[bytes]) -> bytearray:
    entries = []
    for seed in seeds:
        pair = key_pair(seed)
        signed = sign(pair, PAYLOAD_TYPE, manifest)
        entries.append({"algorithm": "ed25519", "public_key": pair.public, "signature": signed})
    data = cbor2.dumps(entries, canonical=True)
    used = blake3(b"kinetic manifest v1\0" + manifest).digest() + struct.pack("<I", len(data)) + data
    return bytearray(used + bytes(SLOT - len(used)))
