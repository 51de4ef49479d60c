"""Bundles, sound ones and broken ones on purpose: written from FORMAT.md, not by ``ktc``, and without NumPy.

forge()                                                      # a sound bundle's bytes
forge(manifest=lambda table: table.update(x=1), seeds=[SEED])  # wrong, and signed all the same
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import cbor2
from blake3 import blake3
from nacl import bindings

SEED, OTHER_SEED, THIRD_SEED = (bytes(range(first, first + 32)) for first in (0, 1, 2))
"""Secret keys, known to everybody."""

SLOT, LEAF, BOUNDARY = 16_384, 1 << 20, 4096
PAYLOAD_TYPE = "application/vnd.kinetic.bundle+cbor"
MAGIC = bytes.fromhex("894b54430d0a1a0a")

ATTEMPTS = 20
"""How often a layout is made anew, since it depends on the manifest's length, and that on the layout."""

Change = Callable[[Any], object]
"""Changes what it is given in place."""

Edit = Callable[[bytes], bytes]
"""Gives other bytes in place of those it is given."""


def same(data: bytes) -> bytes:
    return data


# A model file: header, keys, one tensor


def string(text: str | bytes) -> bytes:
    data = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value_record(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def text_record(name: str, value: str) -> bytes:
    return value_record(name, 8, string(value))


def number_record(name: str, value: int) -> bytes:
    return value_record(name, 4, struct.pack("<I", value))


def array_record(name: str, kind: int, count: int, data: bytes = b"") -> bytes:
    return value_record(name, 9, struct.pack("<IQ", kind, count) + data)


def texts_record(name: str, values: Iterable[str]) -> bytes:
    items = [string(value) for value in values]
    return array_record(name, 8, len(items), b"".join(items))


ARCHITECTURE = text_record("general.architecture", "llama")
TEMPLATE = text_record("tokenizer.chat_template", "{{ messages }}")
TOKENS = texts_record("tokenizer.ggml.tokens", ["<end>", " red", " blue"])
MODEL = text_record("tokenizer.ggml.model", "gpt2")
KEYS = (ARCHITECTURE, TEMPLATE, TOKENS, number_record("llama.block_count", 1), MODEL)
TOKENIZER = MODEL + TOKENS


def gguf(
    keys: Iterable[bytes] = KEYS,
    data: bytes = b"weights!" * 9,
    *,
    version: int = 3,
    tensors: int = 1,
    count: int | None = None,
) -> bytes:
    """A model file of one tensor of bytes. ``tensors`` and ``count`` are what it says there are of tensors and keys."""
    records = list(keys)
    tensor = string("token_embd.weight") + struct.pack("<IQiQ", 1, len(data), 24, 0)
    said = len(records) if count is None else count
    head = struct.pack("<4sIQQ", b"GGUF", version, tensors, said) + b"".join(records) + tensor
    return head + bytes(-len(head) % 32) + data


# Sections


class Part(NamedTuple):
    """A section to be: its content, and what the manifest says of it."""

    kind: str
    data: bytes
    critical: bool = True


def leaf_list(model: bytes) -> bytes:
    pieces = [model[at : at + LEAF] for at in range(0, len(model), LEAF)]
    return b"".join(leaf_digest(index, piece) for index, piece in enumerate(pieces))


def leaf_digest(index: int, piece: bytes) -> bytes:
    return blake3(b"kinetic leaf v1\0" + struct.pack("<Q", index) + piece).digest()


def parts(model: bytes | None = None) -> list[Part]:
    """All four kinds."""
    model = gguf() if model is None else model
    return [
        Part("gguf", model),
        Part("tokenizer", TOKENIZER),
        Part("template", TEMPLATE),
        Part("leaves", leaf_list(model)),
    ]


# The bundle


def forge(
    sections: Iterable[Part] | None = None,
    *,
    manifest: Change | None = None,
    header: Mapping[str, int] | None = None,
    edit: Edit = same,
    content: Change | None = None,
    slot: Change | None = None,
    seeds: Iterable[bytes] = (),
) -> bytes:
    """A bundle's bytes; what depends on a change follows suit, signatures included.

    ``manifest`` changes the table before it is encoded, ``edit`` what it was
    encoded to, ``header`` fields of the header and of its copy in the manifest,
    ``content`` the finished bytes before the slot, ``slot`` the slot.
    """
    chosen = parts() if sections is None else list(sections)
    data, size = _settled(chosen, manifest, edit, header or {})
    out = bytearray(size)
    out[:64] = pack_header(size, len(data), header or {})
    out[64 : 64 + len(data)] = data
    for part, (begin, end) in zip(chosen, _places(chosen, len(data)), strict=True):
        out[begin:end] = part.data
    if content:
        content(out)
    tail = pack_slot(data, signatures(data, seeds))
    if slot:
        slot(tail)
    out[-SLOT:] = tail
    return bytes(out)


def repacked(data: bytes, manifest: Change, seeds: Iterable[bytes] = ()) -> bytes:
    """Another bundle's bytes with its manifest changed (not in length), and signed anew."""
    table = cbor2.loads(manifest_of(data))
    manifest(table)
    changed = cbor2.dumps(table, canonical=True)
    end = 64 + len(manifest_of(data))
    assert len(changed) == end - 64
    return data[:64] + changed + data[end:-SLOT] + pack_slot(changed, signatures(changed, seeds))


def manifest_of(data: bytes) -> bytes:
    """The manifest's bytes in a bundle's."""
    return data[64 : 64 + int.from_bytes(data[32:40], "little")]


def _settled(chosen: Sequence[Part], change: Change | None, edit: Edit, fields: Mapping[str, int]) -> tuple[bytes, int]:
    """The manifest as it will stand, and the size of the file. Some changes never let the layout settle."""
    data, size = b"", 0
    for _ in range(ATTEMPTS):
        found = len(data)
        places = _places(chosen, found)
        size = boundary(places[-1][1] if places else 64 + found) + SLOT
        table = _table(chosen, places)
        table["header"] = pack_header(size, found, fields)
        if change:
            change(table)
        data = edit(cbor2.dumps(table, canonical=True))
        if found == len(data):
            break
    return data, size


def _table(chosen: Sequence[Part], places: Sequence[tuple[int, int]]) -> dict[str, Any]:
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


def _places(chosen: Sequence[Part], manifest_length: int) -> list[tuple[int, int]]:
    end, found = 64 + manifest_length, []
    for part in chosen:
        begin = boundary(end)
        end = begin + len(part.data)
        found.append((begin, end))
    return found


def boundary(position: int) -> int:
    return (position + BOUNDARY - 1) // BOUNDARY * BOUNDARY


def pack_header(size: int, manifest_length: int, changes: Mapping[str, int]) -> bytes:
    fields = {"major": 1, "minor": 0, "flags": 0, "size": size, "at": 64, "length": manifest_length, "rest": 0}
    values = fields | dict(changes)
    rest = values.pop("rest").to_bytes(24, "little")
    return MAGIC + struct.pack("<HHIQQQ", *values.values()) + rest


# Signatures


def public_key(seed: bytes) -> bytes:
    public: bytes = bindings.crypto_sign_seed_keypair(seed)[0]
    return public


def sign(seed: bytes, payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    kind = payload_type.encode("ascii")
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    return sign_plain(seed, message)


def sign_plain(seed: bytes, message: bytes) -> bytes:
    """Without the encoding around what is signed."""
    signed: bytes = bindings.crypto_sign(message, bindings.crypto_sign_seed_keypair(seed)[1])[:64]
    return signed


def signature(seed: bytes, payload: bytes, **changes: Any) -> dict[str, Any]:
    """An entry of the slot."""
    table = {"algorithm": "ed25519", "public_key": public_key(seed), "signature": sign(seed, payload)}
    return table | changes


def signatures(payload: bytes, seeds: Iterable[bytes]) -> bytes:
    return packed([signature(seed, payload) for seed in seeds])


def packed(value: Any) -> bytes:
    data: bytes = cbor2.dumps(value, canonical=True)
    return data


def pack_slot(manifest: bytes, entries: bytes) -> bytearray:
    used = blake3(b"kinetic manifest v1\0" + manifest).digest() + struct.pack("<I", len(entries)) + entries
    return bytearray(used + bytes(SLOT - len(used)))
