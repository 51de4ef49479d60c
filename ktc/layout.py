"""Where everything stands in a bundle: header, boundaries, the one place of each section.

FORMAT.md, Layout of a bundle:

    header 64 | manifest | padding | section | padding | ... | section | padding | signature slot 16,384

All integers here are Python's, which do not wrap; every number from a file is
compared with the file's size before anything is read by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from ktc import limits
from ktc.canonical import show
from ktc.errors import Malformed

MAGIC = b"\x89KTC\r\n\x1a\n"
"""Not text, and damaged visibly by whatever changes line ends."""

MAJOR, MINOR = 1, 0
HEADER_BYTES = 64
MANIFEST_AT = HEADER_BYTES
BOUNDARY = 4096
SLOT_BYTES = 16_384

_RECEIPT = re.compile(rb'\s*\{[^{]*"(receipt|signatures)"\s*:|\xa2greceipt')
"""How a receipt begins, in JSON and in CBOR."""

_HEADER = Struct("<8sHHIQQQ24s")


class Header(NamedTuple):
    """The fixed part at the beginning; ``raw`` is its 64 bytes."""

    major: int
    minor: int
    flags: int
    file_length: int
    manifest_at: int
    manifest_length: int
    raw: bytes

    @property
    def slot_at(self) -> int:
        return self.file_length - SLOT_BYTES

    @property
    def manifest_end(self) -> int:
        return self.manifest_at + self.manifest_length


class Section(NamedTuple):
    """One section: where it lies in the file, and what its bytes hash to (hex; "" for a digest it doesn't have)."""

    name: str
    kind: str
    critical: bool
    offset: int
    length: int
    blake3: str
    sha256: str

    @property
    def end(self) -> int:
        return self.offset + self.length


def boundary(position: int) -> int:
    """The first boundary at or after ``position``."""
    return -(-position // BOUNDARY) * BOUNDARY


def pack_header(file_length: int, manifest_length: int) -> bytes:
    """The 64 bytes of a header of this version."""
    return _HEADER.pack(MAGIC, MAJOR, MINOR, 0, file_length, MANIFEST_AT, manifest_length, bytes(24))


def unpack_header(data: bytes) -> Header:
    """The fields of 64 bytes that begin with the magic (step B1); nothing else is judged. Raises NOT_A_BUNDLE."""
    if not data.startswith(MAGIC):
        raise Malformed(f"this is not a bundle: {_other_kind(data)}", name="NOT_A_BUNDLE")
    if len(data) < HEADER_BYTES:
        raise Malformed(f"this is not a bundle: it ends inside the header, at byte {len(data)}", name="NOT_A_BUNDLE")
    _, major, minor, flags, file_length, manifest_at, manifest_length, _ = _HEADER.unpack(data)
    return Header(major, minor, flags, file_length, manifest_at, manifest_length, data)


def _other_kind(data: bytes) -> str:
    """What a file is that begins with ``data`` and not with the magic, and what to do with it."""
    if not data:
        return "the file is empty"
    if data.startswith(b"GGUF"):
        return "it is a model file, and `kinetic pack` makes a bundle of it"
    if _RECEIPT.match(data):
        return "it begins as a receipt does, and `kinetic verify-receipt` checks those"
    return f"it begins with {show(data[:8], 60)}"


def check_header(header: Header) -> None:
    """Step B2 but for the version."""
    if header.flags:
        raise Malformed(f"the header sets the flags {header.flags:#x}, and no flag is known", name="FLAGS")
    if header.manifest_at != MANIFEST_AT:
        raise _bad_header(f"puts the manifest at byte {header.manifest_at}, not {MANIFEST_AT}")
    if not 1 <= header.manifest_length <= limits.MAX_MANIFEST_BYTES:
        raise _bad_header(f"claims a manifest of {header.manifest_length} bytes, not 1 to {limits.MAX_MANIFEST_BYTES}")
    if any(header.raw[40:]):
        raise _bad_header("is not zero from byte 40 on")


def _bad_header(fault: str) -> Malformed:
    return Malformed(f"the header {fault}", name="HEADER")


def check_length(header: Header, size: int) -> None:
    """Step B3: ``size`` is the file's own, in bytes."""
    if header.file_length != size:
        raise Malformed(f"the header says {header.file_length} bytes, but the file has {size}", name="FILE_LENGTH")
    least = header.manifest_end + SLOT_BYTES
    if size < least or size % BOUNDARY:
        raise Malformed(
            f"the file has {size} bytes, but by its header {least} or more, and a multiple of {BOUNDARY}",
            name="FILE_LENGTH",
        )


def check_places(header: Header, sections: Sequence[Section]) -> None:
    """Step B7: each section at its one place, then the slot, then nothing."""
    end, what = header.manifest_end, "the manifest"
    for section in sections:
        if section.offset != boundary(end):
            raise _bad_place(f"section '{section.name}' begins at byte {section.offset}", boundary(end), what)
        end, what = section.end, f"section '{section.name}'"
    if header.slot_at != boundary(end):
        raise _bad_place(f"the signature slot begins at byte {header.slot_at}", boundary(end), what)


def _bad_place(fault: str, due: int, what: str) -> Malformed:
    return Malformed(f"{fault}, but its place after {what} is byte {due}", name="LAYOUT")


class Gap(NamedTuple):
    """Bytes from ``begin`` to ``end`` that must be zero, and what they follow."""

    begin: int
    end: int
    after: str


def padding(header: Header, sections: Sequence[Section]) -> Iterator[Gap]:
    """All padding of a file whose places were checked; gaps of no bytes are left out."""
    end, what = header.manifest_end, "the manifest"
    for section in sections:
        yield from _gap(end, section.offset, what)
        end, what = section.end, f"section '{section.name}'"
    yield from _gap(end, header.slot_at, what)


def _gap(begin: int, end: int, after: str) -> Iterator[Gap]:
    if begin < end:
        yield Gap(begin, end, after)
