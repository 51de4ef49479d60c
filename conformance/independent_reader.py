"""Checks a bundle (``.ktc``) with a reader that was written from FORMAT.md alone.

    python -m conformance.independent_reader FILE [--sha256]

It imports nothing of ``ktc``, ``receipts`` or ``kinetic``: where it and ``ktc`` disagree on a
file, the document is unclear or one of the two is wrong. Steps B1 to B13 are those of FORMAT.md;
B9 is left out: no key, trust file or least release is asked for, so signers are said and not judged.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import sys
from collections.abc import Iterable
from typing import Any, cast

from blake3 import blake3
from nacl import bindings
from nacl.exceptions import BadSignatureError

from conformance.independent_forms import (
    GGUF_STRING,
    MAX_SIGNATURE_BYTES,
    WINDOW_BYTES,
    Decoder,
    Gguf,
    Kind,
    Refusal,
    Source,
    Table,
    array,
    boolean,
    file_name,
    integer,
    key_or_signature,
    octets,
    require,
    table,
    text,
    word,
)

MAGIC = bytes.fromhex("894b54430d0a1a0a")
HEADER_BYTES, BOUNDARY, SLOT_BYTES, LEAF_BYTES = 64, 4096, 16384, WINDOW_BYTES
MAX_EXTENSIONS, MAX_EXTENSION_BYTES, MAX_SIGNATURES = 64, 65536, 64
MAX_MANIFEST_BYTES, MAX_SECTIONS, MAX_PROFILES, MAX_SOURCES = 8388608, 64, 64, 1024
PAYLOAD_TYPE = b"application/vnd.kinetic.bundle+cbor"
KNOWN_KINDS = ("gguf", "tokenizer", "template", "leaves")


def extensions(value: Any, where: str) -> None:
    """A table of texts under names."""
    require(isinstance(value, dict), "WRONG_TYPE", f"{where} is no table")
    require(len(value) <= MAX_EXTENSIONS, "TOO_MANY_ENTRIES", f"{where} has too many entries", 14)
    for key, entry in value.items():
        NAME(key, f"a name in {where}")
        text(limit=MAX_EXTENSION_BYTES)(entry, f"{where}.{key}")


def rising(value: Any, where: str) -> None:
    """Names in strictly ascending order."""
    array(NAME, MAX_EXTENSIONS)(value, where)
    require(value == sorted(set(value)), "OUT_OF_RANGE", f"{where} is not rising")


def profile(value: Any, where: str) -> None:
    """One execution profile; off the CPU there is no instruction set."""
    count = integer(1, 1024)
    isa = word("any|plain|avx2|vnni256|vnni512")
    fields = {"device": word("cpu|cuda|opencl"), "isa": isa, "cores": count, "threads": count}
    table({**fields, "prompt_rows": integer(1, 4096)})(value, where)
    require(value["device"] == "cpu" or value["isa"] == "any", "OUT_OF_RANGE", f"{where}.isa must be any")


NAME = word(r"[a-z0-9][a-z0-9._-]{0,63}")
LINE = text(r"[^\x00-\x1f\x7f-\x9f]*")
DIGEST = octets(32)
FILES = array(table({"name": file_name, "size": integer(0), "blake3": DIGEST, "sha256": DIGEST}), MAX_SOURCES)
DERIVATION = table({"tool": LINE, "tool_version": LINE, "settings": LINE, "files": FILES})
SECTION = table(
    {
        "name": NAME,
        "kind": NAME,
        "critical": boolean,
        "offset": integer(0),
        "length": integer(1),
        "blake3": DIGEST,
        "sha256": octets(32, or_empty=True),
    }
)
MANIFEST: dict[str, Kind] = {
    "type": word(r"(?s:.*)"),
    "version": integer(1),
    "name": NAME,
    "release": integer(0),
    "architecture": text(r"[\x21-\x7e]+"),
    "file": file_name,
    "sections": array(SECTION, MAX_SECTIONS, 1),
    "sources": FILES,
    "profiles": array(profile, MAX_PROFILES),
    "derivation": array(DERIVATION, 1),
    "ext": extensions,
    "crit": rising,
    "header": octets(HEADER_BYTES),
}
"""In the order in which they are judged: the header last."""
SIGNATURES = array(
    table(
        {
            "algorithm": text(limit=MAX_SIGNATURE_BYTES),
            "public_key": key_or_signature,
            "signature": key_or_signature,
        }
    ),
    MAX_SIGNATURES,
)


def boundary(at: int) -> int:
    """The first boundary at or after ``at``."""
    return -(-at // BOUNDARY) * BOUNDARY


def read_header(source: Source) -> bytes:
    """Steps B1 to B3: the header's 64 bytes."""
    header = source.read(0, min(64, source.size))
    require(len(header) == 64 and header[:8] == MAGIC, "NOT_A_BUNDLE", "does not begin as a bundle does")
    major, _, flags, length, at, size = struct.unpack("<HHIQQQ", header[8:40])
    require(major == 1 or not is_packed_as_1(source, header), "HEADER_MISMATCH", "major version 1 was packed")  # B2
    require(major == 1, "VERSION", f"major version {major}", 13)
    require(flags == 0, "FLAGS", f"unknown flags {flags:#x}")
    good = at == 64 and 1 <= size <= MAX_MANIFEST_BYTES and not any(header[40:])
    require(good, "HEADER", "offset or length of the manifest is wrong, or bytes 40 to 63 are not zero")
    require(length == source.size, "FILE_LENGTH", f"{source.size} bytes, the header says {length}")  # B3
    require(length % BOUNDARY == 0, "FILE_LENGTH", f"{length} bytes do not end on a boundary")
    require(length >= 64 + size + SLOT_BYTES, "FILE_LENGTH", "too short for manifest and signature slot")
    return header


def is_packed_as_1(source: Source, header: bytes) -> bool:
    """Whether the manifest holds this header with major version 1."""
    size = int.from_bytes(header[32:40], "little")
    if not 1 <= size <= min(MAX_MANIFEST_BYTES, source.size - HEADER_BYTES):
        return False
    data = source.read(HEADER_BYTES, size)
    try:
        manifest = Decoder(data).whole()
    except Refusal:
        return False
    return isinstance(manifest, dict) and manifest.get("header") == header[:8] + b"\x01\x00" + header[10:]


def read_slot(slot: bytes, manifest: bytes) -> list[Table]:
    """Step B4: the entries of the signature slot."""
    digest = blake3(b"kinetic manifest v1\0" + manifest).digest()
    require(slot[:32] == digest, "MANIFEST_DIGEST", "the manifest has not the digest that the slot names")
    end = 36 + int.from_bytes(slot[32:36], "little")
    require(36 < end <= SLOT_BYTES, "SLOT", f"the slot has no room for {end - 36} bytes of signatures")
    try:
        entries = Decoder(slot[36:end]).whole()
        SIGNATURES(entries, "signatures")
    except Refusal as error:
        require(error.name in ("TOO_MANY_ENTRIES", "TOO_LONG"), "SLOT", error.message)
        raise
    require(not any(slot[end:]), "SLOT", "the rest of the slot is not zero")
    return cast(list[Table], entries)


def read_manifest(data: bytes, header: bytes) -> Table:
    """Step B5: the manifest as a table."""
    manifest = Decoder(data).whole()
    require(isinstance(manifest, dict), "WRONG_TYPE", "the manifest is no table")
    for field in ("type", "version"):
        require(field in manifest, "MISSING_FIELD", f"the manifest lacks {field!r}")
        MANIFEST[field](manifest[field], f"manifest.{field}")
    require(manifest["type"] == "kinetic-bundle", "NOT_A_BUNDLE", "the manifest is of another type")
    require(manifest["version"] == 1, "VERSION", f"manifest of version {manifest['version']}", 13)
    table(MANIFEST)(manifest, "manifest")
    require(manifest["header"] == header, "HEADER_MISMATCH", "the manifest was signed with another header")
    return cast(Table, manifest)


def check_kinds(manifest: Table) -> dict[str, Table]:
    """Step B6: the sections of known kinds, by kind."""
    sections = manifest["sections"]
    names = {section["name"] for section in sections}
    require(len(names) == len(sections), "SECTIONS", "two sections of one name")
    known = [section for section in sections if section["kind"] in KNOWN_KINDS]
    for section in sections:
        sound = section in known or not section["critical"]
        require(sound, "UNKNOWN_SECTION", f"{section['name']!r} is of the unknown kind {section['kind']!r}")
    kinds = {section["kind"]: section for section in known}
    for section in known:
        require(section["critical"], "SECTIONS", f"{section['name']!r} is not marked critical")
    require("gguf" in kinds and len(kinds) == len(known), "SECTIONS", "no model, or two sections of one kind")
    for section in sections:
        sound = (section["sha256"] != "") == (section["kind"] == "gguf")
        require(sound, "SECTIONS", f"{section['name']!r} has a SHA-256 and may not, or none and must")
    for name in manifest["crit"]:
        require(name in manifest["ext"], "CRITICAL", f"the critical extension {name!r} is not there")
    require(not manifest["crit"], "CRITICAL", f"unknown critical extensions {manifest['crit']}", 13)
    return kinds


def check_layout(manifest: Table, manifest_end: int, size: int) -> list[int]:
    """Step B7: where manifest and sections end."""
    ends = [manifest_end]
    for section in manifest["sections"]:
        require(section["offset"] == boundary(ends[-1]), "LAYOUT", f"{section['name']!r} is not where it must be")
        ends.append(section["offset"] + section["length"])
    require(boundary(ends[-1]) + SLOT_BYTES == size, "LAYOUT", "the slot is not where it must be")
    return ends


def check_signatures(payload: bytes, entries: list[Table]) -> list[str]:
    """Step B8: the ids of the keys that signed."""
    message = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE, len(payload), payload)
    ids: list[str] = []
    for entry in entries:
        key, signature = entry["public_key"], entry["signature"]
        require(entry["algorithm"] == "ed25519", "UNKNOWN_ALGORITHM", f"algorithm {entry['algorithm']!r}", 12)
        require(len(key) == 32 and bindings.crypto_core_ed25519_is_valid_point(key), "BAD_KEY", key.hex(), 12)
        ids.append(blake3(key).hexdigest())
        require(signature_holds(message, key, signature), "BAD_SIGNATURE", f"not signed by {ids[-1]}", 12)
    require(len(ids) == len(set(ids)), "REPEATED_KEY", "two signatures by one key", 12)
    return ids


def signature_holds(message: bytes, key: bytes, signature: bytes) -> bool:
    """Whether R is a point of the prime-order group and the equation holds; libsodium looks at S."""
    if len(signature) != 64 or not bindings.crypto_core_ed25519_is_valid_point(signature[:32]):
        return False
    try:
        return bindings.crypto_sign_open(signature + message, key) == message
    except BadSignatureError:
        return False


def digest_of(source: Source, section: Table, leaves: Table | None = None) -> tuple[bytes, int]:
    """Digest of a section, and the first of its leaves that is wrong: its index, or -1."""
    whole, wrong = blake3(), -1
    for index, window in enumerate(source.windows(section["offset"], section["length"])):
        whole.update(window)
        if leaves is not None and wrong < 0:
            leaf = blake3(b"kinetic leaf v1\0" + index.to_bytes(8, "little") + window).digest()
            wrong = wrong if leaf == source.read(leaves["offset"] + 32 * index, 32) else index
    return whole.digest(), wrong


def check_digests(source: Source, manifest: Table, kinds: dict[str, Table]) -> None:
    """Step B11: each section in the order of the file, then the leaves."""
    leaves = kinds.get("leaves")
    counted = leaves if leaves and leaves["length"] == 32 * -(-kinds["gguf"]["length"] // LEAF_BYTES) else None
    sound = counted is not None and digest_of(source, counted)[0] == counted["blake3"]
    wrong = -1
    for section in manifest["sections"]:
        digest, leaf = digest_of(source, section, counted if section["kind"] == "gguf" else None)
        wrong = max(wrong, leaf)
        if digest != section["blake3"]:
            message = f"the section {section['name']!r} has another digest"
            require(not sound or leaf < 0, "LEAF_DIGEST", f"{message}, and leaf {leaf} is the first wrong one")
            raise Refusal(11, "SECTION_DIGEST", message)
    require(counted is leaves, "LEAF_COUNT", "there are too many or too few leaves")
    require(wrong < 0, "LEAF_DIGEST", f"leaf {wrong} of the model has another digest")


def check_sha256(source: Source, section: Table) -> None:
    """Step B12."""
    digest = hashlib.sha256()
    for window in source.windows(section["offset"], section["length"]):
        digest.update(window)
    require(digest.digest() == section["sha256"], "SECTION_SHA256", f"SHA-256 of {section['name']!r} differs")


def check_model(source: Source, manifest: Table, kinds: dict[str, Table]) -> None:
    """Step B13: what is said of the GGUF file, and what was copied from it."""
    model = Gguf(source, kinds["gguf"]["offset"], kinds["gguf"]["length"])
    records = model.records
    require(not model.number_of(b"split.count") > 1, "BAD_GGUF", "one part of several")
    name = manifest["architecture"].encode("utf-8")
    value = struct.pack("<IQ", GGUF_STRING, len(name)) + name
    require(model.value_of(b"general.architecture") == value, "ARCHITECTURE", f"not {name!r}")
    keys = {key for key in records if key.startswith(b"tokenizer.")}
    template = {key for key in keys if key.startswith(b"tokenizer.chat_template")}
    same = has_records(source, kinds.get("tokenizer"), [records[key] for key in sorted(keys - template)])
    require(same, "TOKENIZER_MISMATCH", "the tokenizer is not that of the model")
    same = has_records(source, kinds.get("template"), [records[key] for key in sorted(template)])
    require(same, "TEMPLATE_MISMATCH", "the template is not that of the model")


def has_records(source: Source, section: Table | None, records: Iterable[tuple[int, int]]) -> bool:
    """Whether a section is these records of the model, one behind the other."""
    at, end = (section["offset"], section["offset"] + section["length"]) if section else (0, 0)
    for start, stop in records:
        length = stop - start
        if length > end - at:
            return False
        if any(a != b for a, b in zip(source.windows(start, length), source.windows(at, length), strict=True)):
            return False
        at += length
    return bool(at == end)


def check_source(source: Source, sha256: bool) -> dict[str, Any]:
    """All steps on an open file, in their order."""
    header = read_header(source)
    payload = source.read(HEADER_BYTES, int.from_bytes(header[32:40], "little"))
    entries = read_slot(source.read(source.size - SLOT_BYTES, SLOT_BYTES), payload)
    manifest = read_manifest(payload, header)
    kinds = check_kinds(manifest)
    ends = check_layout(manifest, HEADER_BYTES + len(payload), source.size)
    signers = check_signatures(payload, entries)
    for end in ends:  # B10
        require(not any(source.read(end, boundary(end) - end)), "PADDING", f"padding from byte {end} is not zero")
    check_digests(source, manifest, kinds)
    if sha256:
        check_sha256(source, kinds["gguf"])
    check_model(source, manifest, kinds)
    facts = {key: manifest[key] for key in ("name", "release", "architecture", "file")}
    skipped = [section["name"] for section in manifest["sections"] if section["kind"] not in KNOWN_KINDS]
    digest = blake3(b"kinetic manifest v1\0" + payload).hexdigest()
    return {**facts, "manifest_digest": digest, "signed_by": signers, "skipped": skipped}


def check(path: str | os.PathLike[str], *, sha256: bool = False) -> dict[str, Any]:
    """Facts about the bundle at ``path``; raises ``Refusal`` with the first thing that is wrong."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise Refusal(3, "UNREADABLE", f"cannot open the file: {error}") from error
    try:
        source = Source(descriptor)
        try:
            return check_source(source, sha256)
        finally:
            source.require_unchanged()
    except OSError as error:
        raise Refusal(3, "UNREADABLE", f"cannot read the file: {error}") from error
    finally:
        os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """Prints one line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m conformance.independent_reader", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--sha256", action="store_true", help="check the model's SHA-256 too (step B12)")
    options = parser.parse_args(arguments)
    try:
        facts = check(options.file, sha256=options.sha256)
    except Refusal as refusal:
        print(f"{refusal.exit_code} {refusal.name}: {refusal.message}")
        return refusal.exit_code
    unsigned = "" if facts["signed_by"] else "unsigned, "
    print(f"0 SOUND: {unsigned}" + ", ".join(f"{key} {value!r}" for key, value in facts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
