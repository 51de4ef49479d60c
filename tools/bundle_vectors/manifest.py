"""Step B5: the manifest's encoding, its fields and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cbor2

from tools.bundle_vectors.build import DERIVATION, OK, PROFILE, Case, Expect, entry, extra, field, malformed, named_file
from tools.bundle_vectors.forge import SEED, Change, Edit, forge, packed, parts

RANGE, TYPE, TEXT = (malformed(name, "B5") for name in ("OUT_OF_RANGE", "WRONG_TYPE", "BAD_TEXT"))
MISSING, UNKNOWN, HEX = (malformed(name, "B5") for name in ("MISSING_FIELD", "UNKNOWN_FIELD", "BAD_HEX"))
CANONICAL, CBOR, CUT, BEHIND = (
    malformed(name, "B5") for name in ("NOT_CANONICAL", "BAD_CBOR", "TRUNCATED", "TRAILING_BYTES")
)
SIMPLE, TAG, INDEFINITE = (malformed(name, "B5") for name in ("SIMPLE_VALUE", "TAG", "INDEFINITE"))
LARGE, WORD, FALLING = (malformed(name, "B5") for name in ("INTEGER_TOO_LARGE", "UNKNOWN_WORD", "NOT_ASCENDING"))
DUPLICATE, MISMATCH = malformed("DUPLICATE_KEY", "B5"), malformed("HEADER_MISMATCH", "B5")
NO_SECTIONS = malformed("SECTIONS", "B6")
MANY: Expect = (14, "TOO_MANY_ENTRIES", "B5")
LONG: Expect = (14, "TOO_LONG", "B5")


def cases() -> Iterator[Case]:
    yield from _encodings()
    yield from _names()
    yield from _digests()
    yield from _fields()
    yield from _profiles()
    yield from _claims()
    yield from _limits()


def _signed(name: str, attack: int, what: str, change: Change, expect: Expect, unit: bytes = b"") -> Case:
    """A manifest that holds this, and whoever wrote it signed it."""
    return Case(name, [attack], what, forge(manifest=change, seeds=[SEED]), expect, base="signed", unit=unit)


def _once(old: bytes, new: bytes) -> Edit:
    def edit(data: bytes) -> bytes:
        assert data.count(old) == 1
        return data.replace(old, new)

    return edit


def _by_letters(data: bytes) -> bytes:
    """The fields in the order of their names' first letters, as a dictionary would have them."""
    table = cbor2.loads(data)
    return bytes(cbor2.dumps(dict(sorted(table.items()))))


ENCODINGS: list[tuple[str, str, Edit, Expect]] = [
    ("empty-map", "A manifest without fields.", lambda _: b"\xa0", malformed("NOT_A_BUNDLE", "B5")),
    ("array", "An array in place of the manifest.", lambda _: b"\x80", malformed("NOT_A_BUNDLE", "B5")),
    ("json", "A manifest in JSON.", lambda _: b'{"type": "kinetic-bundle", "version": 1}', CUT),
    ("zeros", "A manifest of zeros: an integer, and more behind it.", lambda data: bytes(len(data)), BEHIND),
    ("byte-more", "A byte behind the manifest.", lambda data: data + b"\0", BEHIND),
    ("byte-less", "A manifest that breaks off.", lambda data: data[:-1], CUT),
    ("tag", "A manifest under a tag.", lambda data: b"\xd9\xd9\xf7" + data, TAG),
    ("indefinite", "A manifest of indefinite length.", lambda data: b"\xbf" + data[1:] + b"\xff", INDEFINITE),
    ("long-integer", "A number in more bytes than it needs.", _once(b"release\x03", b"release\x18\x03"), CANONICAL),
    ("long-length", "A text whose length takes a byte too many.", _once(b"\x64tiny", b"\x78\x04tiny"), CANONICAL),
    ("float", "A release that is a float.", _once(b"release\x03", b"release\xf9\x42\x00"), SIMPLE),
    ("null", "A release that is null.", _once(b"release\x03", b"release\xf6"), SIMPLE),
    ("undefined", "A release that is undefined.", _once(b"release\x03", b"release\xf7"), SIMPLE),
    ("bignum", "A release under the tag of large numbers.", _once(b"release\x03", b"release\xc2\x41\x03"), TAG),
    ("key-of-bytes", "A key of bytes in place of a text.", _once(b"\x67release", b"\x47release"), TYPE),
    ("no-utf8", "A key that is no UTF-8.", _once(b"\x67release", b"\x67releas\xff"), CBOR),
    ("surrogate", "A file name with half a surrogate pair.", _once(b"tiny.gguf", b"ti\xed\xa0\x80gguf"), CBOR),
    ("overlong", "A file name in UTF-8 of too many bytes.", _once(b"tiny.gguf", b"tin\xc0\xaegguf"), CBOR),
    ("key-order", "Fields in the order of the alphabet.", _by_letters, CANONICAL),
    ("key-twice", "A field twice.", lambda _: b"\xa2\x61a\x00\x61a\x00", DUPLICATE),
    ("huge-array", "Sections whose number is 2^64 - 1.", _once(b"sections\x84", b"sections\x9b" + b"\xff" * 8), CUT),
    ("huge-text", "A name of 2^63 bytes.", _once(b"\x64tiny", b"\x7b\x80" + bytes(7) + b"tiny"), CUT),
    ("deep", "A hundred arrays inside each other.", lambda _: b"\x81" * 100 + b"\x80", (14, "TOO_DEEP", "B5")),
    ("mebibytes", "A mebibyte of zeros.", lambda _: bytes(1 << 20), BEHIND),
]


def _encodings() -> Iterator[Case]:
    for name, what, edit, expect in ENCODINGS:
        yield Case(f"manifest-{name}", [56], what, forge(edit=edit, seeds=[SEED]), expect, base="signed")
    containers = packed([[]] * 262_145)
    data = forge(edit=lambda _: containers, seeds=[SEED])
    many = (14, "TOO_MANY_CONTAINERS", "B5")
    yield Case("manifest-many-arrays", [56], "262,146 arrays.", data, many, base="signed", unit=b"\x80")
    largest = b"\x5a\x00\x80\x00\x00" + bytes(8 * 1024 * 1024 - 5)
    what = "A manifest of 8 MiB, none more than there may be: a byte string that is a byte short."
    data = forge(edit=lambda _: largest, seeds=[SEED])
    yield Case("manifest-largest", [56], what, data, CUT, base="signed")


BAD_NAMES = [
    ("parent", "../x"),
    ("root", "/x"),
    ("drive", "C:\\x"),
    ("backslash", "a\\..\\b"),
    ("device", "CON"),
    ("nul", "a\0"),
    ("empty", ""),
    ("dot", "."),
    ("dot-dot", ".."),
    ("dash", "-o"),
    ("space", "a b"),
    ("newline", "gguf\n"),
    ("escape", "a\x1b[2J"),
    ("accent", "\u00e9"),
    ("look-alike", "\u0261guf"),
    ("right-to-left", "a\u202eb"),
    ("upper-case", "Gguf"),
]
LONG_NAMES = [("65", "x" * 65), ("2000", "x" * 2000)]


def _names() -> Iterator[Case]:
    """62: there are no characters to make a path of."""
    for what, expect, names in [("is", TEXT, BAD_NAMES), ("has", RANGE, LONG_NAMES)]:
        for name, text in names:
            said = repr(text)[1:-1] if what == "is" else f"{len(text)} characters"
            yield _signed(f"section-{name}", 62, f"A section's name {what} {said}.", entry(2, name=text), expect)
            yield _signed(f"kind-{name}", 62, f"A section's kind {what} {said}.", entry(2, kind=text), expect)
            yield _signed(f"bundle-{name}", 62, f"The bundle's name {what} {said}.", field(name=text), expect)
            change = field(ext={text: ""})
            yield _signed(f"extension-{name}", 62, f"An extension's name {what} {said}.", change, expect)
    yield _signed("section-trailing-dot", 62, "A name that ends with a dot is a name.", entry(2, name="con."), OK)
    yield from _file_names()
    yield _signed("section-number", 62, "A section's name is a number.", entry(2, name=1), TYPE)
    yield _signed("section-bytes", 62, "A section's name is a byte string.", entry(2, name=b"gguf"), TYPE)


FILE_NAMES = [
    ("empty", "", TEXT),
    ("dot", ".", TEXT),
    ("dot-dot", "..", TEXT),
    ("parent", "../x.gguf", TEXT),
    ("root", "/etc/passwd", TEXT),
    ("folder", "a/b.gguf", TEXT),
    ("backslash", "..\\x.gguf", TEXT),
    ("nul", "a.gguf\0", TEXT),
    ("newline", "a\n.gguf", TEXT),
    ("last-newline", "a.gguf\n", TEXT),
    ("escape", "a\x1b[2J.gguf", TEXT),
    ("delete", "a\x7f", TEXT),
    ("c1", "a\x9b2J", TEXT),
    ("256", "x" * 256, RANGE),
    ("accents-256", "\u00e9" * 128, RANGE),
    ("2000", "x" * 2000, RANGE),
    ("255", "x" * 255, OK),
    ("accents-254", "\u00e9" * 127, OK),
    ("three-dots", "...", OK),
    ("dash", "-o", OK),
    ("space", " a b ", OK),
]


def _file_names() -> Iterator[Case]:
    for name, text, expect in FILE_NAMES:
        said = repr(text)[1:-1] if len(text) < 60 else f"{len(text.encode())} bytes long"
        yield _signed(f"file-{name}", 62, f"The model file's name is {said}.", field(file=text), expect)
        change = field(sources=[named_file(text)])
        yield _signed(f"source-{name}", 62, f"The name of a source is {said}.", change, expect)


def _lacking(index: int, name: str) -> Change:
    def change(table: dict[str, Any]) -> None:
        del table["sections"][index][name]

    return change


def _digests() -> Iterator[Case]:
    """63: a digest has one name, one length and one spelling."""
    sections = malformed("SECTIONS", "B6")
    rows: list[tuple[str, str, Change, Expect]] = [
        ("short", "A digest of 31 bytes.", entry(0, blake3=bytes(31)), HEX),
        ("eight", "A digest of 8 bytes.", entry(0, blake3=bytes(8)), HEX),
        ("long", "A digest of 33 bytes.", entry(0, blake3=bytes(33)), HEX),
        ("empty", "A digest of no bytes.", entry(0, blake3=b""), HEX),
        ("text", "A digest in hex digits.", entry(0, blake3="00" * 32), TYPE),
        ("upper-case", "A digest in capital hex digits.", entry(0, blake3="AB" * 32), TYPE),
        ("prefixed", "A digest with its algorithm before it.", entry(0, blake3="blake3:" + "00" * 32), TYPE),
        ("spaced", "A digest with a space behind it.", entry(0, blake3="00" * 32 + " "), TYPE),
        ("absent", "An empty text in place of a digest.", entry(0, blake3=""), TYPE),
        ("null", "Null in place of a digest.", entry(0, blake3=None), SIMPLE),
        ("md5", "An MD5 beside the digests.", entry(0, md5=bytes(16)), UNKNOWN),
        ("none", "A field that names the digest's algorithm: none.", entry(0, algorithm="none"), UNKNOWN),
        ("blake3-64", "A shorter BLAKE3 under a name of its own.", entry(0, **{"blake3-64": bytes(8)}), UNKNOWN),
        ("missing", "A section without a digest.", _lacking(0, "blake3"), MISSING),
        ("no-sha256", "A model file without a SHA-256.", entry(0, sha256=""), sections),
        ("sha256-missing", "A section that lacks the field of its SHA-256.", _lacking(1, "sha256"), MISSING),
        ("sha256-short", "A SHA-256 of 20 bytes.", entry(0, sha256=bytes(20)), HEX),
        ("sha256-extra", "A SHA-256 of the tokenizer.", entry(1, sha256=bytes(32)), sections),
        ("sha256-of-bytes", "Absence as a byte string of no bytes.", entry(1, sha256=b""), CANONICAL),
        ("source-short", "A source's digest of 31 bytes.", field(sources=[named_file(blake3=bytes(31))]), HEX),
        ("source-none", "A source without a SHA-256.", field(sources=[named_file(sha256="")]), TYPE),
        ("header-short", "A header of 63 bytes.", field(header=bytes(63)), HEX),
        ("header-zero", "A header of zeros.", field(header=bytes(64)), MISMATCH),
        ("header-text", "A header in hex digits.", field(header="00" * 64), TYPE),
    ]
    for name, what, change, expect in rows:
        yield _signed(f"digest-{name}", 63, what, change, expect)
    other = forge(header={"minor": 1})[:64]
    what = "A manifest that was made for another header."
    yield _signed("digest-header-other", 56, what, field(header=other), MISMATCH)
    wrong = malformed("SECTION_DIGEST", "B11")
    for index, name in enumerate(["model", "tokenizer", "template", "leaves"]):
        what = f"The digest of the {name} is another."
        yield _signed(f"digest-wrong-{name}", 63, what, entry(index, blake3=bytes(32)), wrong)
    sha = forge(manifest=entry(0, sha256=bytes(32)), seeds=[SEED])
    what, expect = "The model file's SHA-256 is another.", malformed("SECTION_SHA256", "B12")
    yield Case("digest-wrong-sha256", [63], what, sha, expect, {"sha256": True}, base="signed")
    yield Case("digest-wrong-sha256-unasked", [63], "The same, where nobody asks for it.", sha, OK, base="signed")


def _without(name: str) -> Change:
    def change(table: dict[str, Any]) -> None:
        del table[name]

    return change


FIELDS = ["header", "name", "release", "architecture", "file", "sections", "sources", "profiles", "derivation", "ext"]


def _fields() -> Iterator[Case]:
    for name in [*FIELDS, "crit"]:
        yield _signed(f"field-no-{name}", 63, f"A manifest without {name}.", _without(name), MISSING)
    no_bundle = malformed("NOT_A_BUNDLE", "B5")
    rows: list[tuple[str, str, Change, Expect]] = [
        ("no-type", "A manifest without a type.", _without("type"), no_bundle),
        ("receipt", "A manifest of another type.", field(type="kinetic-receipt"), no_bundle),
        ("no-version", "A manifest without a version.", _without("version"), MISSING),
        ("version-zero", "Version 0.", field(version=0), RANGE),
        ("version-negative", "A version below 0.", field(version=-1), RANGE),
        ("version-true", "A version that is true.", field(version=True), TYPE),
        ("version-text", "A version as a text.", field(version="1"), TYPE),
        ("more", "A field that no one knows.", field(path="/x"), UNKNOWN),
        ("section-more", "A field of a section that no one knows.", entry(0, path="/x"), UNKNOWN),
        ("sections-none", "No sections.", field(sections=[]), NO_SECTIONS),
        ("sections-map", "Sections as a table.", field(sections={}), TYPE),
        ("section-array", "A section as an array.", field(sections=[[]]), TYPE),
        ("critical-number", "A flag that is 1.", entry(0, critical=1), TYPE),
        ("architecture-empty", "No architecture.", field(architecture=""), TEXT),
        ("architecture-space", "An architecture of two words.", field(architecture="ll ama"), TEXT),
        ("architecture-accent", "An architecture beyond ASCII.", field(architecture="ll\u00e1ma"), TEXT),
        ("release-negative", "A release below 0.", field(release=-1), RANGE),
        ("release-2-53", "A release of 2^53.", field(release=2**53), LARGE),
        ("release-text", "A release as a text.", field(release="3"), TYPE),
        ("ext-array", "Extensions as an array.", field(ext=[]), TYPE),
        ("ext-number", "An extension that is a number.", field(ext={"a": 1}), TYPE),
        ("crit-falling", "Names that fall.", field(ext={"a": "", "b": ""}, crit=["b", "a"]), FALLING),
        ("crit-twice", "A name twice.", field(ext={"a": ""}, crit=["a", "a"]), FALLING),
        ("source-size", "A source of -1 bytes.", field(sources=[named_file(size=-1)]), RANGE),
    ]
    for name, what, change, expect in rows:
        yield _signed(f"field-{name}", 63, what, change, expect)


def _profiles() -> Iterator[Case]:
    """69: nothing in a profile can run, or change an answer."""
    rows: list[tuple[str, str, dict[str, Any], Expect]] = [
        ("library", "A library to load.", {"library": "/tmp/evil.so"}, UNKNOWN),
        ("environment", "Environment variables.", {"env": {"LD_PRELOAD": "/tmp/evil.so"}}, UNKNOWN),
        ("command", "A command to run.", {"run": "rm -r ."}, UNKNOWN),
        ("fast-math", "Fast arithmetic.", {"fast_math": True}, UNKNOWN),
        ("cache-type", "Another form of the cache.", {"cache_type_k": "q4_0"}, UNKNOWN),
        ("scope", "A lower scope of checks.", {"check": "none"}, UNKNOWN),
        ("device", "A device that no one knows.", {"device": "tpu"}, WORD),
        ("device-path", "A path as a device.", {"device": "/dev/mem"}, WORD),
        ("isa", "Instructions that no one knows.", {"isa": "avx1024"}, WORD),
        ("isa-number", "Instructions as a number.", {"isa": 2}, TYPE),
        ("gpu-isa", "A CPU's instructions on a GPU.", {"device": "cuda"}, RANGE),
        ("threads-zero", "No threads.", {"threads": 0}, RANGE),
        ("threads-million", "A million threads.", {"threads": 10**6}, RANGE),
        ("threads-negative", "-1 threads.", {"threads": -1}, RANGE),
        ("threads-1025", "A thread too many.", {"threads": 1025}, RANGE),
        ("threads-text", "Threads as a text.", {"threads": "8"}, TYPE),
        ("threads-true", "Threads that are true.", {"threads": True}, TYPE),
        ("threads-float", "Threads as a float.", {"threads": 1.5}, SIMPLE),
        ("cores-zero", "No cores.", {"cores": 0}, RANGE),
        ("cores-1025", "A core too many.", {"cores": 1025}, RANGE),
        ("rows-zero", "No rows.", {"prompt_rows": 0}, RANGE),
        ("rows-4097", "A row too many.", {"prompt_rows": 4097}, RANGE),
        ("largest", "All numbers as large as they may be.", {"cores": 1024, "threads": 1024, "prompt_rows": 4096}, OK),
        ("cuda", "A GPU.", {"device": "cuda", "isa": "any"}, OK),
    ]
    for name, what, changes, expect in rows:
        change = field(profiles=[PROFILE | changes])
        yield _signed(f"profile-{name}", 69, f"A profile: {what[0].lower()}{what[1:]}", change, expect)
    yield _signed("profile-empty", 69, "A profile without fields.", field(profiles=[{}]), MISSING)
    yield _signed("profile-text", 69, "A profile as a text.", field(profiles=["fast"]), TYPE)
    yield _signed("profiles-none", 69, "Profiles as a table.", field(profiles=PROFILE), TYPE)


def _claims() -> Iterator[Case]:
    """Sources and derivation are claims, in a closed form."""
    rows: list[tuple[str, str, dict[str, Any], Expect]] = [
        ("command", "A command.", {"run": "make"}, UNKNOWN),
        ("two-lines", "Settings of two lines.", {"settings": "a\nb"}, TEXT),
        ("escape", "A tool whose name steers a terminal.", {"tool": "\x1b[2J"}, TEXT),
        ("c1", "A version with a control character above ASCII.", {"tool_version": "\x9b2J"}, TEXT),
        ("number", "A version as a number.", {"tool_version": 1}, TYPE),
        ("path", "A file in a folder.", {"files": [named_file("a/b")]}, TEXT),
        ("empty-lines", "Texts that are empty.", {"tool": "", "tool_version": "", "settings": ""}, OK),
        ("long", "Settings of 1025 bytes.", {"settings": "x" * 1025}, LONG),
        ("longest", "Settings of 1024 bytes.", {"settings": "x" * 1024}, OK),
    ]
    for name, what, changes, expect in rows:
        change = field(derivation=[DERIVATION | changes])
        yield _signed(f"derivation-{name}", 69, f"A derivation: {what[0].lower()}{what[1:]}", change, expect, b"x")


def _limits() -> Iterator[Case]:
    source, profile = named_file(), PROFILE
    names = {f"e{number:02}": "" for number in range(65)}
    rows: list[tuple[str, str, Change, Expect, bytes]] = [
        ("sources-1024", "1024 sources.", field(sources=[source] * 1024), OK, packed(source)),
        ("sources-1025", "1025 sources.", field(sources=[source] * 1025), MANY, packed(source)),
        ("profiles-64", "64 profiles.", field(profiles=[profile] * 64), OK, packed(profile)),
        ("profiles-65", "65 profiles.", field(profiles=[profile] * 65), MANY, packed(profile)),
        ("derivations", "Two derivations.", field(derivation=[DERIVATION] * 2), MANY, packed(DERIVATION)),
        ("extensions-65", "65 extensions.", field(ext=names), MANY, b""),
        ("crit-65", "65 critical extensions.", field(ext={}, crit=list(names)), MANY, b""),
        ("extension-long", "An extension of 65,537 bytes.", field(ext={"a": "x" * 65537}), LONG, b"x"),
        ("extension-longest", "An extension of 65,536 bytes.", field(ext={"a": "x" * 65536}), OK, b"x"),
        ("architecture-long", "An architecture of 1025 bytes.", field(architecture="x" * 1025), LONG, b"x"),
    ]
    for name, what, change, expect, unit in rows:
        yield _signed(f"limit-{name}", 69, what, change, expect, unit)
    for name, count, expect in [("64", 60, OK), ("65", 61, MANY)]:
        more = [extra(f"extra-{number:02}", b"x") for number in range(count)]
        data = forge([*parts(), *more], seeds=[SEED])
        passed = {} if expect is MANY else {"passed_over": [part.kind for part in more]}
        yield Case(f"limit-sections-{name}", [70], f"{name} sections.", data, expect, more=passed, base="signed")
