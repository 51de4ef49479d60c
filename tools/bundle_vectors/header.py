"""Steps B1 to B3: the header, and how long the file is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.bundle_vectors.build import BASES, OK, Case, Expect, malformed, patched
from tools.bundle_vectors.forge import BOUNDARY, MAGIC, SEED, SLOT, forge, manifest_of

NO_BUNDLE = malformed("NOT_A_BUNDLE", "B1")
HEADER = malformed("HEADER", "B2")
LENGTH = malformed("FILE_LENGTH", "B3")
DIGEST = malformed("MANIFEST_DIGEST", "B4")
PLAIN = BASES["plain"]
END = 64 + len(manifest_of(PLAIN))


def cases() -> Iterator[Case]:
    yield from _magic()
    yield from _manifest_place()
    yield from _lengths()
    yield from _cut()
    yield from _longer()
    yield from _around()
    yield from _versions()


def _magic() -> Iterator[Case]:
    for name, what, magic in [
        ("swapped", "The magic number backwards.", MAGIC[::-1]),
        ("line-ends", "A magic number of which a program made line feeds.", b"\x89KTC\n\x1a\n\0"),
        ("seven-bits", "A magic number without the highest bit.", b"\x09KTC\r\n\x1a\n"),
        ("lower-case", "A magic number in lower-case letters.", b"\x89ktc\r\n\x1a\n"),
        ("gguf", "A bundle that begins as a model file does.", b"GGUF\3\0\0\0"),
        ("zero", "No magic number.", bytes(8)),
    ]:
        yield Case(f"magic-{name}", [60], what, patched(PLAIN, 0, magic), NO_BUNDLE)
    yield Case("magic-only", [57], "A magic number, and nothing else.", MAGIC, NO_BUNDLE)


def _told(name: str, attack: int, what: str, expect: Expect, **fields: int) -> Case:
    """A header that tells this, and so does its copy in the manifest, which is signed."""
    return Case(name, [attack], what, forge(header=fields, seeds=[SEED]), expect, base="signed")


def _manifest_place() -> Iterator[Case]:
    """56: where the manifest is said to be."""
    size, manifest = len(PLAIN), END - 64
    for name, at in [
        ("zero", 0),
        ("header", 63),
        ("one-late", 65),
        ("boundary", BOUNDARY),
        ("slot", size - SLOT),
        ("file-end", size),
        ("far", 2**40),
        ("sign-bit", 2**63),
        ("largest", 2**64 - 1),
        ("wraps-to-64", 2**64 - manifest),
    ]:
        yield _told(f"manifest-at-{name}", 56, f"The manifest is said to begin at byte {at}.", HEADER, at=at)
    most = 8 * 1024 * 1024
    for name, length, expect in [
        ("zero", 0, HEADER),
        ("one", 1, DIGEST),
        ("one-short", manifest - 1, DIGEST),
        ("one-long", manifest + 1, DIGEST),
        ("to-the-slot", size - SLOT - 64, DIGEST),
        ("into-the-slot", size - SLOT - 63, LENGTH),
        ("file", size, LENGTH),
        ("limit", most, LENGTH),
        ("over-limit", most + 1, HEADER),
        ("u32", 2**32, HEADER),
        ("sign-bit", 2**63, HEADER),
        ("wraps-to-zero", 2**64 - 64, HEADER),
        ("largest", 2**64 - 1, HEADER),
    ]:
        what = f"The manifest is said to have {length} bytes."
        yield _told(f"manifest-length-{name}", 56, what, expect, length=length)
    for at in (40, 47, 56, 63):
        what = f"Byte {at} of the header is not zero."
        yield _told(f"header-byte-{at}", 56, what, HEADER, rest=1 << 8 * (at - 40))


def _lengths() -> Iterator[Case]:
    """57: how long the file is said to be."""
    size = len(PLAIN)
    for name, length in [
        ("zero", 0),
        ("one-less", size - 1),
        ("one-more", size + 1),
        ("boundary-less", size - BOUNDARY),
        ("boundary-more", size + BOUNDARY),
        ("slot-less", size - SLOT),
        ("u32-more", size + 2**32),
        ("100-tb", 10**14),
        ("negative", 2**64 - size),
        ("largest", 2**64 - 1),
    ]:
        yield _told(f"length-{name}", 57, f"The file is said to have {length} bytes.", LENGTH, size=length)
    for name, more in [("odd", 1), ("sector", 512), ("below-boundary", BOUNDARY - 1)]:
        data = forge(header={"size": size + more}, seeds=[SEED]) + bytes(more)
        yield Case(
            f"length-{name}",
            [57],
            "A length that is told rightly, and no whole boundaries.",
            data,
            LENGTH,
            base="signed",
        )
    small: dict[str, Any] = {"size": SLOT + 64, "length": 1}
    data = forge(header=small)[:64] + bytes(SLOT)
    yield Case("length-least-uneven", [57], "Room for a manifest of no bytes, and no whole boundaries.", data, LENGTH)
    data = forge(header={"size": SLOT, "length": 1})[:64] + bytes(SLOT - 64)
    yield Case("length-slot-alone", [57], "A file with room for a slot alone.", data, LENGTH)
    data = forge(header={"size": SLOT + BOUNDARY, "length": BOUNDARY - 63})[:64] + bytes(SLOT + BOUNDARY - 64)
    yield Case("length-manifest-one-too-long", [57], "The manifest reaches into the slot by one byte.", data, LENGTH)
    data = forge(header={"size": SLOT + BOUNDARY, "length": BOUNDARY - 64})[:64] + bytes(SLOT + BOUNDARY - 64)
    yield Case("length-manifest-fits", [57], "The manifest ends where the slot begins, and is not there.", data, DIGEST)


def _cut() -> Iterator[Case]:
    signed = BASES["signed"]
    for length in (0, 1, 7, 8, 16, 63):
        yield Case(f"cut-to-{length}", [57], f"A file that ends after byte {length}.", signed[:length], NO_BUNDLE)
    for name, length in [
        ("header", 64),
        ("manifest", 300),
        ("first-section", 4096),
        ("model", 4200),
        ("slot", len(signed) - SLOT),
        ("signature", len(signed) - SLOT + 90),
        ("last-boundary", len(signed) - BOUNDARY),
        ("last-byte", len(signed) - 1),
    ]:
        what = f"A file of {len(signed)} bytes that was cut after {length}."
        yield Case(f"cut-{name}", [57], what, signed[:length], LENGTH, base="signed")


def _longer() -> Iterator[Case]:
    signed = BASES["signed"]
    for name, more in [("zero", 1), ("boundary", BOUNDARY), ("slot", SLOT)]:
        yield Case(f"more-{name}", [57], f"{more} zeros behind the slot.", signed + bytes(more), LENGTH, base="signed")
    yield Case("twice", [57], "A bundle behind a bundle.", signed + PLAIN, LENGTH, base="signed")


FOREIGN = [
    ("zip", b"PK\3\4", b"PK\5\6" + bytes(18)),
    ("elf", b"\x7fELF\2\1\1", b"\x7fELF\2\1\1"),
    ("html", b"<!DOCTYPE html><script>", b"<script>alert(1)</script>"),
    ("pdf", b"%PDF-1.7\n", b"\n%%EOF\n"),
    ("gzip", b"\x1f\x8b\x08\0", b"\x1f\x8b\x08\0"),
    ("script", b"#!/bin/sh\n", b"\nrm -r .\n"),
]


def _around() -> Iterator[Case]:
    """60: a file that is something else too."""
    signed = BASES["signed"]
    for name, head, tail in FOREIGN:
        kind = name.upper()
        yield Case(f"before-{name}", [60], f"{kind} in front of a bundle.", head + signed, NO_BUNDLE, base="signed")
        over = head + signed[len(head) :]
        yield Case(f"over-{name}", [60], f"A bundle whose first bytes are {kind}.", over, NO_BUNDLE, base="signed")
        yield Case(f"behind-{name}", [60], f"{kind} behind a bundle.", signed + tail, LENGTH, base="signed")
    what = "A byte order mark in front of a bundle."
    yield Case("before-bom", [60], what, b"\xef\xbb\xbf" + signed, NO_BUNDLE, base="signed")


def _versions() -> Iterator[Case]:
    """70: what is of another version, and what only looks so."""
    version, flags = (13, "VERSION", "B2"), malformed("FLAGS", "B2")
    for major in (0, 2, 65535):
        yield _told(f"major-{major}", 70, f"A bundle of major version {major}.", version, major=major)
    yield _told("major-and-flag", 70, "Another version, whose flags mean something else.", version, major=2, flags=1)
    yield _told("major-and-length", 70, "Another version, of another layout.", version, major=2, at=4096, size=0)
    for name, flag in [("first", 1), ("17", 1 << 17), ("highest", 2**31), ("all", 2**32 - 1)]:
        yield _told(f"flag-{name}", 70, f"The flags {flag:#x}, which a reader must understand.", flags, flags=flag)
    for minor in (1, 65535):
        yield _told(f"minor-{minor}", 70, f"A newer minor version, {minor}.", OK, minor=minor)
    damaged = malformed("HEADER_MISMATCH", "B2")
    for name, at, new in [("third-bit", 8, b"\5"), ("high-byte", 9, b"\x80"), ("zero", 8, b"\0")]:
        what = "A version in the header that the manifest does not have: a bit fell over."
        yield Case(f"major-damaged-{name}", [70], what, patched(BASES["signed"], at, new), damaged, base="signed")
    for name, at, step in [("minor", 10, "B5"), ("length", 17, "B3"), ("flags", 12, "B2")]:
        names = {"minor": "HEADER_MISMATCH", "length": "FILE_LENGTH", "flags": "FLAGS"}
        what = f"The {name} in the header, and not in the manifest, has a bit more."
        data = patched(BASES["signed"], at, bytes([BASES["signed"][at] ^ 2]))
        yield Case(f"damaged-{name}", [57, 70], what, data, malformed(names[name], step), base="signed")
