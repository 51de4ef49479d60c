"""Steps B4 to B7 and B10: the slot's form, where sections stand, and bytes that nobody lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tools.bundle_vectors.build import BASES, Case, cbor, entry, extra, malformed, patched, put
from tools.bundle_vectors.forge import (
    BOUNDARY,
    OTHER_SEED,
    SEED,
    SLOT,
    THIRD_SEED,
    Change,
    forge,
    gguf,
    manifest_of,
    packed,
    parts,
    signature,
)
from tools.bundle_vectors.header import FOREIGN

LAYOUT = malformed("LAYOUT", "B7")
PADDING = malformed("PADDING", "B10")
BAD_SLOT = malformed("SLOT", "B4")
PLAIN = BASES["plain"]
MANIFEST_END = 64 + len(manifest_of(PLAIN))


def cases() -> Iterator[Case]:
    yield from _places()
    yield from _rooms()
    yield from _padding()
    yield from _foreign()
    yield from _slots()


def _all(change: Callable[[dict[str, Any]], object]) -> Change:
    def each(table: dict[str, Any]) -> None:
        for section in table["sections"]:
            change(section)

    return each


def _swap(first: int, second: int, *names: str) -> Change:
    """Two entries trade some of their fields."""

    def change(table: dict[str, Any]) -> None:
        one, other = table["sections"][first], table["sections"][second]
        for name in names:
            one[name], other[name] = other[name], one[name]

    return change


def _later(table: dict[str, Any], by: int = BOUNDARY) -> None:
    for section in table["sections"][1:]:
        section["offset"] += by


PLACES: list[tuple[str, str, Change]] = [
    ("overlap-same", "Two sections at one place.", entry(1, offset=4096)),
    ("overlap-tail", "A section that begins inside the one before.", entry(3, offset=12288)),
    ("order", "The entries of the sections backwards.", lambda table: table["sections"].reverse()),
    ("order-of-two", "Two sections that have traded places.", _swap(1, 2, "offset")),
    ("unaligned", "A section that begins a byte late.", entry(0, offset=4097)),
    ("unaligned-512", "A section at a sector's beginning.", entry(1, offset=8192 + 512)),
    ("early", "A section that begins a byte early.", entry(1, offset=8191)),
    ("in-manifest", "A section that begins inside the manifest.", entry(0, offset=64)),
    ("in-header", "A section that begins with the file.", entry(0, offset=0)),
    ("all-in-header", "All sections begin with the file.", _all(lambda section: section.update(offset=0))),
    ("in-slot", "A section that begins inside the slot.", entry(3, offset=len(PLAIN) - SLOT + BOUNDARY)),
    ("slot", "A section that is the slot.", entry(3, offset=len(PLAIN) - SLOT, length=SLOT)),
    ("one-boundary-late", "A section one boundary too far.", entry(3, offset=20480)),
    ("far", "A section far behind the file.", entry(0, offset=2**40)),
    ("largest", "A section as far away as a number can say.", entry(3, offset=2**53 - 1)),
    ("length-into-slot", "The last section reaches into the slot.", entry(3, length=4097)),
    ("length-of-file", "A section as long as the file.", entry(0, length=len(PLAIN))),
    ("length-largest", "A section as long as a number can say.", entry(3, length=2**53 - 1)),
    ("length-100-tb", "A section of 100 TB.", entry(0, length=10**14)),
]


def _places() -> Iterator[Case]:
    """58: where sections are said to be."""
    for name, what, change in PLACES:
        yield Case(f"place-{name}", [58], what, forge(manifest=change, seeds=[SEED]), LAYOUT, base="signed")
    form, large = malformed("OUT_OF_RANGE", "B5"), malformed("INTEGER_TOO_LARGE", "B5")
    for name, what, change, expect in [
        ("offset-negative", "An offset below 0.", entry(0, offset=-4096), form),
        ("offset-2-53", "An offset of 2^53.", entry(0, offset=2**53), large),
        (
            "offset-2-64",
            "An offset that wraps to 4096 in 64 bits.",
            entry(0, offset=2**64 + 4096),
            malformed("TAG", "B5"),
        ),
        ("length-negative", "A length below 0.", entry(0, length=-1), form),
        ("length-zero", "A section of no bytes.", entry(3, length=0), form),
        ("length-wraps", "A length that wraps with the offset in 64 bits.", entry(0, length=2**64 - 4000), large),
        ("offset-text", "An offset as a text.", entry(0, offset="4096"), malformed("WRONG_TYPE", "B5")),
        ("offset-float", "An offset as a float.", entry(0, offset=4096.0), malformed("SIMPLE_VALUE", "B5")),
        ("offset-true", "A length of true.", entry(0, length=True), malformed("WRONG_TYPE", "B5")),
    ]:
        yield Case(f"place-{name}", [58], what, forge(manifest=change, seeds=[SEED]), expect, base="signed")


def _rooms() -> Iterator[Case]:
    """59: room that no one lists, in files that are as long as they say."""
    size = len(PLAIN) + BOUNDARY
    wide = forge(header={"size": size}, seeds=[SEED])
    for name, what, room in [
        ("zero", "A boundary's worth of zeros before the slot.", bytes(BOUNDARY)),
        ("ones", "A boundary's worth of something before the slot.", b"\1" * BOUNDARY),
    ]:
        yield Case(f"room-{name}", [59], what, wide[:-SLOT] + room + wide[-SLOT:], LAYOUT, base="signed")
    told = forge(header={"size": size}, manifest=_later, seeds=[SEED])
    told = told[:8192] + bytes(BOUNDARY) + told[8192:]
    yield Case(
        "room-between", [59], "Room between two sections, which the offsets respect.", told, LAYOUT, base="signed"
    )
    moved = PLAIN[:-SLOT] + bytes(BOUNDARY) + PLAIN[-SLOT:]
    what = "Room before the slot in a file that does not say so."
    yield Case("room-not-told", [59], what, moved, malformed("FILE_LENGTH", "B3"))


def _padding() -> Iterator[Case]:
    """59: bytes that are listed nowhere."""
    model_end = 4096 + len(gguf())
    leaves_end = 16384 + 32
    for name, what, at in [
        ("manifest-first", "The first byte after the manifest.", MANIFEST_END),
        ("manifest-last", "The last byte before the first section.", 4095),
        ("model-first", "The first byte after the model file.", model_end),
        ("model-last", "The last byte before the tokenizer.", 8191),
        ("tokenizer", "A byte after the tokenizer.", 12000),
        ("template", "A byte after the template.", 16000),
        ("leaves-first", "The first byte after the last section.", leaves_end),
        ("last", "The last byte before the slot.", len(PLAIN) - SLOT - 1),
    ]:
        data = forge(content=put(at, b"\1"), seeds=[SEED])
        yield Case(f"padding-{name}", [59], f"{what[:-1]} is not zero.", data, PADDING, base="signed")
    what = "The model file is listed a byte short: its last byte is in the padding."
    short = forge(manifest=entry(0, length=len(gguf()) - 1), seeds=[SEED])
    yield Case("padding-model-short", [59], what, short, PADDING, base="signed")
    both = forge(content=put(4095, b"\1"), manifest=entry(0, blake3=bytes(32)), seeds=[SEED])
    yield Case("padding-and-digest", [59], "Padding and a digest are wrong: the padding is told.", both, PADDING)
    passed = forge([*parts(), extra()], content=put(20480 + 300, b"\1"), seeds=[SEED])
    what = "A byte after a section that is passed over is not zero."
    yield Case("padding-passed-over", [59], what, passed, PADDING, base="signed")


def _foreign() -> Iterator[Case]:
    """60: another format where nobody should look."""
    for name, head, _ in FOREIGN:
        data = forge(content=put(MANIFEST_END + 8, head), seeds=[SEED])
        yield Case(f"in-padding-{name}", [60], f"{name.upper()} in the padding.", data, PADDING, base="signed")
        data = forge(slot=put(9000, head), seeds=[SEED])
        yield Case(f"in-slot-{name}", [60], f"{name.upper()} in the rest of the slot.", data, BAD_SLOT, base="signed")


ENTRY = {"algorithm": "ed25519", "public_key": bytes(32), "signature": bytes(64)}


def _entries(*changes: dict[str, Any]) -> bytes:
    return packed([ENTRY | change for change in changes])


def _slots() -> Iterator[Case]:
    """68: the form of the slot and of what is in it."""
    for name, what, data in [
        ("no-cbor", "Signatures that are no CBOR.", b"\xff"),
        ("null", "Null in place of the signatures.", b"\xf6"),
        ("map", "A map in place of the signatures.", b"\xa0"),
        ("text", "A text in place of the signatures.", b"\x60"),
        ("long-head", "No signatures, with a longer head than is needed.", b"\x98\x00"),
        ("indefinite", "No signatures, of indefinite length.", b"\x9f\xff"),
        ("two-values", "Two arrays of signatures.", b"\x80\x80"),
        ("number", "A number among the signatures.", b"\x81\x00"),
        ("array", "An array among the signatures.", b"\x81\x80"),
        ("nested", "Arrays inside arrays.", b"\x81" * 100 + b"\x80"),
        ("huge-array", "An array of 2^64 - 1 signatures.", b"\x9b" + b"\xff" * 8),
        ("cut", "An entry that breaks off.", _entries({})[:-1]),
        ("tag", "Signatures under a tag.", b"\xd2\x80"),
        ("entry-empty", "An entry without fields.", b"\x81\xa0"),
        ("entry-more", "An entry with a field more.", _entries({"keyid": "alice"})),
        ("entry-text", "A signature as a text.", _entries({"signature": "00" * 64})),
        ("entry-key-text", "A key as base64.", _entries({"public_key": "A" * 43 + "="})),
        ("entry-algorithm", "An algorithm as a number.", _entries({"algorithm": -8})),
        ("entry-null", "A signature that is null.", _entries({"signature": None})),
    ]:
        yield Case(f"slot-{name}", [68], what, forge(slot=cbor(data)), BAD_SLOT)
    lacking = packed([{"algorithm": "ed25519", "public_key": bytes(32)}])
    yield Case("slot-entry-less", [68], "An entry without a signature.", forge(slot=cbor(lacking)), BAD_SLOT)
    for name, what, length in [
        ("zero", "Signatures of no bytes: not even an empty array.", 0),
        ("one-more", "Signatures a byte longer than they are.", 2),
        ("room", "Signatures as long as there is room.", SLOT - 36),
        ("over", "Signatures a byte longer than there is room.", SLOT - 35),
        ("largest", "A length of 2^32 - 1.", 2**32 - 1),
        ("wraps", "A length that wraps with the 36 bytes before.", 2**32 - 36),
    ]:
        yield Case(f"slot-length-{name}", [68], what, forge(slot=cbor(b"\x80", length)), BAD_SLOT)
    for name, at in [("first", 37), ("middle", 9000), ("last", SLOT - 1)]:
        what = f"Byte {at} of the slot, behind the signatures, is not zero."
        yield Case(f"slot-rest-{name}", [60, 68], what, forge(slot=put(at, b"\1")), BAD_SLOT)
    yield from _slot_limits()


def _slot_limits() -> Iterator[Case]:
    many, long = (14, "TOO_MANY_ENTRIES", "B4"), (14, "TOO_LONG", "B4")
    unit = packed(ENTRY)
    yield Case("slot-65", [68], "65 signatures.", forge(slot=cbor(_entries(*[{}] * 65))), many, unit=unit)
    for name, what, value in [
        ("signature", "A signature of 1025 bytes.", bytes(1025)),
        ("public_key", "A key of 1025 bytes.", bytes(1025)),
        ("algorithm", "An algorithm's name of 1025 bytes.", "x" * 1025),
    ]:
        data = forge(slot=cbor(_entries({name: value})))
        yield Case(f"slot-long-{name.replace('_', '-')}", [68], what, data, long, unit=b"x")
    data = patched(PLAIN, -SLOT, bytes(32))
    yield Case(
        "slot-no-digest", [68], "A slot without the manifest's digest.", data, malformed("MANIFEST_DIGEST", "B4")
    )
    full = forge(slot=_sign_all)
    what = "64 signatures, of which the second is by the first key again."
    yield Case("slot-64", [68], what, full, (12, "REPEATED_KEY", "B8"))


def _sign_all(tail: bytearray) -> None:
    manifest = manifest_of(PLAIN)
    entries = [signature(seed, manifest) for seed in (SEED, SEED, OTHER_SEED, THIRD_SEED)]
    cbor(packed(entries * 16))(tail)
