"""Bundles made by hand, field for field from FORMAT.md: ``ktc``, ``receipts`` and ``kinetic`` have no part in them."""

from __future__ import annotations

import hashlib
import struct

import cbor2
from blake3 import blake3
from nacl import bindings

HEADER = struct.Struct("<8sHHIQQQ24s")
MAGIC = b"\x89KTC\r\n\x1a\n"
LEAF = 1048576
ORDER = 2**252 + 27742317777372353535851937790883648493
KEYS = [bindings.crypto_sign_seed_keypair(bytes([number] * 32)) for number in (1, 2)]


def up(at):
    return (at + 4095) // 4096 * 4096


def packed(value):
    return cbor2.dumps(value, canonical=True)


# A GGUF file by hand: header, keys, one tensor.


def counted(data):
    return struct.pack("<Q", len(data)) + data


def record(key, kind, value):
    return counted(key) + struct.pack("<I", kind) + value


ARCHITECTURE = record(b"general.architecture", 8, counted(b"llama"))
TOKENS = record(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + counted(b"a") + counted(b"bc"))
ODD = record(b"tokenizer.ggml.odd", 9, struct.pack("<IQ", 7, 3) + b"\x01\x00\x01")
MODEL = record(b"tokenizer.ggml.model", 8, counted(b"gpt2"))
TEMPLATE = record(b"tokenizer.chat_template", 8, counted(b"{{ messages }}"))
TOOL_TEMPLATE = record(b"tokenizer.chat_template.tool_use", 8, counted(b"{{ tools }}"))
EPSILON = record(b"llama.epsilon", 6, struct.pack("<f", 1e-5))
RECORDS = (EPSILON, TOOL_TEMPLATE, TOKENS, ARCHITECTURE, ODD, TEMPLATE, MODEL)

BAD_RECORDS = [
    ("type", record(b"x", 13, b"")),
    ("long", record(b"x", 9, struct.pack("<IQ", 0, 2**63))),
    ("nested", record(b"x", 9, struct.pack("<IQIQ", 9, 1, 0, 0))),
    ("nested, none", record(b"x", 9, struct.pack("<IQ", 9, 0))),
    ("type, none", record(b"x", 9, struct.pack("<IQ", 13, 0))),
    ("bool", record(b"x", 7, b"\x02")),
    ("bools", record(b"x", 9, struct.pack("<IQ", 7, 3) + b"\x00\x02\x01")),
    ("no key", record(b"", 0, b"\0")),
    ("long key", record(b"x" * 65536, 0, b"\0")),
    ("no UTF-8", record(b"x\xff", 0, b"\0")),
    ("twice", TOKENS),
    ("part", record(b"split.count", 2, b"\x02\x00")),
]


def gguf(records=RECORDS, version=3, data=4):
    tensor = counted(b"t") + struct.pack("<IQIQ", 1, data // 4, 0, 0)
    head = struct.pack("<4sIQQ", b"GGUF", version, 1, len(records)) + b"".join(records) + tensor
    return head + bytes(-len(head) % 32) + bytes(index % 251 for index in range(data))


def section(kind, data, **fields):
    entry = {"name": kind, "kind": kind, "critical": kind in ("gguf", "tokenizer", "template", "leaves")}
    entry |= {"blake3": blake3(data).digest(), "sha256": hashlib.sha256(data).digest() if kind == "gguf" else ""}
    return entry | fields, data


def leaves_of(model):
    parts = [model[at : at + LEAF] for at in range(0, len(model), LEAF)]
    digests = [blake3(b"kinetic leaf v1\0" + struct.pack("<Q", i) + part).digest() for i, part in enumerate(parts)]
    return b"".join(digests)


def usual(model=None):
    return [
        section("gguf", model or gguf()),
        section("tokenizer", MODEL + ODD + TOKENS),
        section("template", TEMPLATE + TOOL_TEMPLATE),
    ]


def with_section(index, **fields):
    sections = usual()
    sections[index] = (sections[index][0] | fields, sections[index][1])
    return sections


def named_file(**fields):
    return {"name": "part.gguf", "size": 7, "blake3": bytes(32), "sha256": bytes(32)} | fields


def made(settings, files=()):
    return {"tool": "quantize", "tool_version": "", "settings": settings, "files": list(files)}


def signature(payload, key, payload_type=b"application/vnd.kinetic.bundle+cbor"):
    public, secret = key
    message = b"DSSEv1 %d %s %d " % (len(payload_type), payload_type, len(payload)) + payload
    signed = bindings.crypto_sign(message, secret)[:64]
    return {"algorithm": "ed25519", "public_key": public, "signature": signed}


def forged(**fields):
    return lambda payload: packed([signature(payload, KEYS[0]) | fields])


def big_s(payload):
    entry = signature(payload, KEYS[0])
    s = int.from_bytes(entry["signature"][32:], "little") + ORDER
    return packed([entry | {"signature": entry["signature"][:32] + s.to_bytes(32, "little")}])


def manifest_of(entries, changes):
    fields = {"type": "kinetic-bundle", "version": 1, "header": bytes(64), "name": "tiny", "release": 3}
    fields |= {"architecture": "llama", "file": "tiny.gguf", "sections": entries}
    return fields | {"sources": [], "profiles": [], "derivation": [], "ext": {}, "crit": []} | changes


def laid_out(sections, at):
    """Entries with their places, data with its places, and the size of the file."""
    entries, parts = [], []
    for entry, data in sections:
        entries.append({"offset": up(at), "length": len(data)} | entry)
        parts.append((up(at), data))
        at = up(at) + len(data)
    return entries, parts, up(at) + 16384


def bundle(sections=None, *, keys=(), entries=None, minor=0, edit=None, **changes):
    """A bundle's bytes; ``edit`` may change the packed manifest, ``entries`` the slot's."""
    sections = sections if sections is not None else usual()
    header, payload = bytes(64), b""
    for _ in range(4):  # the manifest's length and its offsets depend on each other
        placed, parts, size = laid_out(sections, 64 + len(payload))
        payload = packed(manifest_of(placed, {"header": header} | changes))
        payload = edit(payload) if edit else payload
        header = HEADER.pack(MAGIC, 1, minor, 0, size, 64, len(payload), bytes(24))
    data = bytearray(size)
    for at, part in [(0, header), (64, payload), *parts]:
        data[at : at + len(part)] = part
    entries = entries(payload) if entries else packed([signature(payload, key) for key in keys])
    slot = blake3(b"kinetic manifest v1\0" + payload).digest() + struct.pack("<I", len(entries)) + entries
    data[size - 16384 : size - 16384 + len(slot)] = slot
    return bytes(data)


def patched(data, at, new):
    at = at if at >= 0 else len(data) + at
    return data[:at] + new + data[at + len(new) :]
