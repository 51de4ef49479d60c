"""Two faults in one file: the refusal is that of the lowest step, whatever is read first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.bundle_vectors.build import BASES, PINNED, PROFILE, Case, Expect, cbor, entry, extra, field, malformed, put
from tools.bundle_vectors.forge import (
    OTHER_SEED,
    SEED,
    SLOT,
    Part,
    forge,
    gguf,
    manifest_of,
    packed,
    parts,
    signature,
)

PLAIN = BASES["plain"]
ENTRY = {"algorithm": "ed25519", "public_key": bytes(32), "signature": bytes(64)}
FORGED = cbor(packed([ENTRY]))
"""A signature that does not hold."""

TOO_MANY = cbor(packed([ENTRY] * 65))


def cases() -> Iterator[Case]:
    yield from _beginnings()
    yield from _ends()
    yield from _asked()


def _beginnings() -> Iterator[Case]:
    slot, many = malformed("SLOT", "B4"), (14, "TOO_MANY_ENTRIES", "B4")
    sections, profiles = malformed("SECTIONS", "B6"), (14, "TOO_MANY_ENTRIES", "B5")
    version, next_version = (13, "VERSION", "B2"), {"major": 2}
    rows: list[tuple[str, str, bytes, Expect]] = [
        ("magic-length", "No magic number, and too short.", b"\0" + PLAIN[1:-1], malformed("NOT_A_BUNDLE", "B1")),
        ("version-flags", "Another version, with flags.", forge(header={"major": 2, "flags": 1}), version),
        ("version-cut", "Another version, cut short.", forge(header=next_version)[:-1], version),
        ("version-64", "Another version, cut after the header.", forge(header=next_version)[:64], version),
        ("flags-length", "A flag, and a wrong length.",
         forge(header={"flags": 1, "size": 4096}), malformed("FLAGS", "B2")),
        ("length-digest", "Cut short, with a wrong slot at the end.", PLAIN[: -SLOT - 4096] + bytes(SLOT),
         malformed("FILE_LENGTH", "B3")),
        ("slot-manifest", "Too many signatures on a manifest that lacks a field.",
         forge(manifest=lambda table: table.pop("crit"), slot=TOO_MANY), many),
        ("slot-version", "Bytes behind the signatures, and a manifest of version 2.",
         forge(manifest=field(version=2), slot=put(-1, b"\1")), slot),
        ("manifest-layout", "Too many profiles, and sections out of place.",
         forge(manifest=lambda table: _both(table, field(profiles=[PROFILE] * 65), entry(0, offset=0))),
         profiles),
        ("manifest-sections", "Too many profiles, and an unknown critical section.",
         forge([*parts(), extra(critical=True)], manifest=field(profiles=[PROFILE] * 65)), profiles),
        ("header-sections", "Another header in the manifest, and no model file.",
         forge(parts()[1:], manifest=field(header=bytes(64))), malformed("HEADER_MISMATCH", "B5")),
        ("sections-crit", "Two sections of one name, and an unknown extension.",
         forge(manifest=lambda table: _both(table, entry(1, name="gguf"), field(ext={"a": ""}, crit=["a"]))), sections),
        ("crit-layout", "An unknown extension, and sections out of place.",
         forge(manifest=lambda table: _both(table, entry(0, offset=0), field(ext={"a": ""}, crit=["a"]))),
         (13, "CRITICAL", "B6")),
    ]  # fmt: skip
    for name, what, data, expect in rows:
        yield Case(f"steps-{name}", [70], what, data, expect, unit=packed(PROFILE))


def _both(table: dict[str, Any], *changes: Any) -> None:
    for change in changes:
        change(table)


def _ends() -> Iterator[Case]:
    bad, padding = (12, "BAD_SIGNATURE", "B8"), malformed("PADDING", "B10")
    wrong = malformed("SECTION_DIGEST", "B11")
    other = [*parts()[:2], Part("template", b"{{ }}"), parts()[3]]
    forged = signature(SEED, manifest_of(PLAIN), signature=bytes(64))
    rows: list[tuple[str, str, bytes, Expect]] = [
        ("layout-signature", "Sections out of place, and a signature that does not hold.",
         forge(manifest=entry(0, offset=0), slot=FORGED), malformed("LAYOUT", "B7")),
        ("signature-padding", "A signature that does not hold, and padding that is not zero.",
         forge(content=put(4095, b"\1"), slot=cbor(packed([forged]))), bad),
        ("signature-digest", "A signature that does not hold, and a wrong digest.",
         forge(manifest=entry(1, blake3=bytes(32)), slot=cbor(packed([forged]))), bad),
        ("padding-digest", "The last padding, and the digest of the first section.",
         forge(content=put(-SLOT - 1, b"\1"), manifest=entry(0, blake3=bytes(32))), padding),
        ("digest-template", "A wrong digest, and another template.",
         forge(other, manifest=entry(3, blake3=bytes(32))), wrong),
        ("digest-gguf", "A wrong digest, and a model file that is none.",
         forge([Part("gguf", b"GGML" * 10), *parts()[1:3]], manifest=entry(2, blake3=bytes(32))), wrong),
        ("gguf-architecture", "A model file that breaks off, and another architecture.",
         forge([Part("gguf", gguf()[:100])], manifest=field(architecture="gemma3")), malformed("BAD_GGUF", "B13")),
    ]  # fmt: skip
    for name, what, data, expect in rows:
        yield Case(f"steps-{name}", [59], what, data, expect)
    sha = forge(other, manifest=entry(0, sha256=bytes(32)))
    what = "Another template, and a wrong SHA-256."
    yield Case("steps-sha256-template", [59], what, sha, malformed("SECTION_SHA256", "B12"), {"sha256": True})
    yield Case("steps-template", [59], "The same, where nobody asks.", sha, malformed("TEMPLATE_MISMATCH", "B13"))


def _asked() -> Iterator[Case]:
    """Trust is judged before the content, and after the form."""
    stranger = forge(content=put(4095, b"\1"), seeds=[OTHER_SEED])
    what = "A stranger's signature, and padding that is not zero."
    yield Case("steps-trust-padding", [59, 68], what, stranger, (12, "UNTRUSTED_KEY", "B9"), PINNED)
    old = forge(manifest=entry(0, blake3=bytes(32)), seeds=[SEED])
    what = "An old release, and a wrong digest."
    yield Case("steps-release-digest", [63, 67], what, old, (12, "OLD_RELEASE", "B9"), {"min_release": 4})
    moved = forge(manifest=entry(0, offset=0))
    what = "An unsigned bundle where a signature is asked for, with sections out of place."
    yield Case("steps-layout-trust", [58, 68], what, moved, malformed("LAYOUT", "B7"), PINNED)
    forged = forge(slot=cbor(packed([signature(SEED, b"")])))
    what = "An old release with a signature that does not hold."
    yield Case("steps-signature-release", [67, 68], what, forged, (12, "BAD_SIGNATURE", "B8"), {"min_release": 4})
