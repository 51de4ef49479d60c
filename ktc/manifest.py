"""A bundle's manifest, field by field (FORMAT.md, Manifest): ``MANIFEST`` is the specification, in code.

The manifest is always deterministic CBOR in the file. In Python it is a dict of
plain values, digests as hex text; ``pack`` and ``read`` go from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ktc import canonical, layout, limits
from ktc.canonical import require_unicode, show
from ktc.digest import digest
from ktc.errors import Malformed, Unverifiable
from ktc.fields import Bool, Enum, Hex, Int, ListOf, Optional, Table, Text, TextMap, exact
from ktc.layout import Header, Section

Manifest: TypeAlias = dict[str, Any]
"""A manifest's plain values. ``MANIFEST.check`` says whether a dict is one."""

DOMAIN = b"kinetic manifest v1\0"
TYPE, VERSION = "kinetic-bundle", 1

GGUF, TOKENIZER, TEMPLATE, LEAVES = "gguf", "tokenizer", "template", "leaves"
KINDS = (GGUF, TOKENIZER, TEMPLATE, LEAVES)
"""The kinds of section that this version knows; all are critical."""

DEVICES = ("cpu", "cuda", "opencl")
INSTRUCTION_SETS = ("any", "plain", "avx2", "vnni256", "vnni512")

KNOWN_EXTENSIONS: frozenset[str] = frozenset()
"""Critical extensions that this version understands."""


class ShortText(Text):
    """Text whose length is part of its form: more than ``limit`` bytes are malformed, not too much to ask."""

    def check(self, value: object, path: str) -> None:
        text = exact(value, str, path)
        require_unicode(text)
        if len(text.encode("utf-8")) > self.limit:
            raise Malformed(f"{path} must have at most {self.limit} bytes", name="OUT_OF_RANGE")
        super().check(value, path)


NAME = ShortText(64, pattern=r"[a-z0-9][a-z0-9._-]*")
LABEL = Text(pattern=r"[^\x00-\x1f\x7f-\x9f]*")
"""One line of free text."""

FILE_NAME = ShortText(255, pattern=r"(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f/\\]+")
"""A name, never a path: no slashes, and neither of the two names that mean a folder."""

SECTION = Table(
    name=NAME,
    kind=NAME,
    critical=Bool(),
    offset=Int(0),
    length=Int(1),
    blake3=Hex(),
    sha256=Optional(Hex()),  # of the kind gguf, and of no other
)

SOURCE = Table(name=FILE_NAME, size=Int(0), blake3=Hex(), sha256=Hex())


class _Profile(Table):
    """An instruction set belongs to a CPU."""

    def check(self, value: object, path: str) -> None:
        super().check(value, path)
        if isinstance(value, dict) and value["device"] != "cpu" and value["isa"] != "any":
            raise Malformed(f"{path}.isa must be 'any' off the CPU", name="OUT_OF_RANGE")


PROFILE = _Profile(  # numbers and words: nothing in it can run, or change a bit of an answer
    device=Enum(*DEVICES),
    isa=Enum(*INSTRUCTION_SETS),
    cores=Int(1, 1024),
    threads=Int(1, 1024),
    prompt_rows=Int(1, 4096),
)

DERIVATION = Table(
    tool=LABEL,
    tool_version=LABEL,
    settings=LABEL,
    files=ListOf(SOURCE, limits.MAX_SOURCES),
)

MANIFEST = Table(
    type=Enum(TYPE),
    version=Int(VERSION, VERSION),
    header=Hex(layout.HEADER_BYTES),
    name=NAME,
    release=Int(0),
    architecture=Text(pattern=r"[\x21-\x7e]+"),
    file=FILE_NAME,
    sections=ListOf(SECTION, limits.MAX_SECTIONS),
    sources=ListOf(SOURCE, limits.MAX_SOURCES),
    profiles=ListOf(PROFILE, limits.MAX_PROFILES),
    derivation=ListOf(DERIVATION, 1),
    ext=TextMap(NAME, Text(limits.MAX_EXTENSION_BYTES), limits.MAX_EXTENSIONS),
    crit=ListOf(NAME, limits.MAX_EXTENSIONS, key=str),
)


def manifest_digest(data: bytes) -> bytes:
    """32 bytes that name a bundle: the digest of the manifest as it stands in the file."""
    return digest(DOMAIN, data)


def pack(manifest: Manifest) -> bytes:
    """The one byte string of a manifest; raises Malformed or LimitExceeded if it isn't one."""
    MANIFEST.check(manifest, "manifest")
    return canonical.encode(MANIFEST.pack(manifest))


def read(data: bytes, header: Header) -> Manifest:
    """Steps B5 and B6: the manifest in these bytes, in its plain form."""
    table = canonical.decode(data)
    _require_version(table)
    manifest = MANIFEST.unpack(table, "manifest")
    if pack(manifest) != data:  # a second spelling of absence
        raise Malformed("the manifest is not in its one canonical form", name="NOT_CANONICAL")
    if manifest["header"] != header.raw.hex():
        at = next(i for i, byte in enumerate(bytes.fromhex(manifest["header"])) if byte != header.raw[i])
        raise Malformed(f"byte {at} of the header is not what the manifest says it is", name="HEADER_MISMATCH")
    _check_sections([Section(**entry) for entry in manifest["sections"]])
    _check_extensions(manifest)
    return manifest


def _require_version(table: object) -> None:
    if not isinstance(table, Mapping) or table.get("type") != TYPE:
        raise Malformed("this is not a bundle: its manifest has another type", name="NOT_A_BUNDLE")
    version = table.get("version")
    if type(version) is int and version < 1:
        raise Malformed("manifest.version must be 1 or more", name="OUT_OF_RANGE")
    if type(version) is int and version != VERSION:
        raise Unverifiable(f"the manifest has version {version}, and this program knows {VERSION}", name="VERSION")


def _check_extensions(manifest: Manifest) -> None:
    for name in manifest["crit"]:
        if name not in manifest["ext"]:
            raise Malformed(f"manifest.crit names '{name}', which manifest.ext does not hold", name="CRITICAL")
    for name in manifest["crit"]:
        if name not in KNOWN_EXTENSIONS:
            raise Unverifiable(f"the bundle needs the extension '{name}', unknown here", name="CRITICAL")


def _check_sections(sections: list[Section]) -> None:
    """Kinds, how often each is there, and what follows from the kind."""
    names: set[str] = set()
    for section in sections:
        what = f"section '{section.name}' of kind '{section.kind}'"
        if section.name in names:
            raise _bad_sections(f"two sections are named '{section.name}'")
        names.add(section.name)
        if section.kind not in KINDS and section.critical:
            raise Malformed(f"{what} is critical, and of no kind known here", name="UNKNOWN_SECTION")
        if section.kind in KINDS and not section.critical:
            raise _bad_sections(f"{what} must be critical")
        if (section.kind == GGUF) != (section.sha256 != ""):
            raise _bad_sections(f"{what} must have {'a' if section.kind == GGUF else 'no'} sha256")
    for kind in KINDS:
        count = sum(section.kind == kind for section in sections)
        if count > 1 or (kind == GGUF and count == 0):
            least = "exactly" if kind == GGUF else "at most"
            raise _bad_sections(f"there are {count} sections of kind {show(kind)}, and must be {least} one")


def _bad_sections(fault: str) -> Malformed:
    return Malformed(fault, name="SECTIONS")
