"""The reader of bundles that was written from FORMAT.md alone, on bundles made by hand from it too."""

from __future__ import annotations

import ast
import os
import struct
from pathlib import Path

import cbor2
import pytest
from blake3 import blake3
from nacl import bindings

from conformance import independent_forms, independent_reader
from conformance.independent_reader import Refusal, check
from tests.support.hand_made_bundle import (
    ARCHITECTURE,
    BAD_RECORDS,
    KEYS,
    LEAF,
    MODEL,
    ODD,
    RECORDS,
    TEMPLATE,
    TOKENS,
    TOOL_TEMPLATE,
    big_s,
    bundle,
    counted,
    forged,
    gguf,
    leaves_of,
    made,
    named_file,
    packed,
    patched,
    record,
    section,
    signature,
    usual,
    with_section,
)

NEUTRAL, LOW_ORDER = b"\x01" + bytes(31), bytes(32)


@pytest.fixture
def judge(tmp_path):
    """``judge(data)`` gives facts, or exit code and name of the refusal."""

    def run(data, **options):
        path = tmp_path / "tiny.ktc"
        path.write_bytes(data)
        try:
            return check(path, **options)
        except Refusal as refusal:
            assert refusal.message
            return refusal.exit_code, refusal.name

    return run


def test_a_sound_bundle_gives_its_facts(judge):
    facts = judge(bundle(keys=KEYS), sha256=True)
    assert (facts["name"], facts["release"], facts["architecture"]) == ("tiny", 3, "llama")
    assert facts["signed_by"] == [blake3(public).hexdigest() for public, _ in KEYS]
    assert judge(bundle())["signed_by"] == []


def test_everything_that_may_be_there_may_be_there(judge):
    model = gguf(data=LEAF + 8)
    profile = {"device": "cpu", "isa": "avx2", "cores": 1024, "threads": 1, "prompt_rows": 4096}
    files = [named_file(), named_file(size=0)]
    sections = [*usual(model), section("leaves", leaves_of(model)), section("notes", b"x" * 4096)]
    rest = {"sources": files, "profiles": [profile], "derivation": [made("q8_0\u2028", files)]}
    data = bundle(sections, minor=1, **rest, ext={"a": "b" * 65536}, keys=KEYS)
    assert judge(data, sha256=True)["skipped"] == ["notes"]


@pytest.mark.parametrize("version", [2, 3])
def test_a_model_without_tokenizer_needs_no_sections_for_it(judge, version):
    assert judge(bundle([section("gguf", gguf([ARCHITECTURE], version))]))["name"] == "tiny"


def test_the_command_prints_one_line(tmp_path, capsys):
    path = tmp_path / "tiny.ktc"
    path.write_bytes(bundle())
    assert independent_reader.main([str(path), "--sha256"]) == 0
    path.write_bytes(b"")
    assert independent_reader.main([str(path)]) == 11
    said = capsys.readouterr().out
    assert said.startswith("0 SOUND: unsigned, ") and said.count("\n") == 2


def test_key_ids_are_those_of_the_document():
    public = bindings.crypto_sign_seed_keypair(bytes(range(32)))[0]
    text = (Path(__file__).parents[2] / "FORMAT.md").read_text()
    assert f"| key id | `{blake3(public).hexdigest()}` |" in text


def test_the_reader_imports_nothing_of_the_project():
    for module in (independent_reader, independent_forms):
        tree = ast.parse(Path(module.__file__).read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {getattr(node, "module", None) or node.names[0].name for node in nodes}
        assert not {name.split(".")[0] for name in names} & {"ktc", "receipts", "kinetic"}
        assert {name for name in names if name.startswith("conformance")} <= {independent_forms.__name__}


# B1 to B4


def test_b1_a_link_is_followed(judge, tmp_path):
    judge(bundle())
    (tmp_path / "link").symlink_to("tiny.ktc")
    assert check(tmp_path / "link")["name"] == "tiny"


def test_b1_a_file_that_is_none(judge, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, name in [(tmp_path / "none", "UNREADABLE"), (tmp_path, "NOT_A_FILE"), (tmp_path / "pipe", "NOT_A_FILE")]:
        with pytest.raises(Refusal) as caught:
            check(path)
        assert (caught.value.exit_code, caught.value.name) == (3, name)


HEADERS = [
    ("B1 empty", lambda data: b"", (11, "NOT_A_BUNDLE")),
    ("B1 short", lambda data: data[:63], (11, "NOT_A_BUNDLE")),
    ("B1 magic", lambda data: patched(data, 6, b"\n\x1a"), (11, "NOT_A_BUNDLE")),
    ("B2 flipped major", lambda data: patched(data, 8, b"\x03"), (11, "HEADER_MISMATCH")),
    ("B2 major", lambda data: patched(bundle(header=bytes(64)), 8, b"\x02"), (13, "VERSION")),
    ("B2 major and flags", lambda data: patched(data, 8, b"\x02\x00\x00\x00\x01"), (13, "VERSION")),
    ("B2 major and manifest", lambda data: patched(patched(data, 8, b"\x02"), 64, b"\xff"), (13, "VERSION")),
    ("B2 major alone", lambda data: patched(data[:64], 8, b"\x02"), (13, "VERSION")),
    ("B2 flags", lambda data: patched(data, 15, b"\x01"), (11, "FLAGS")),
    ("B2 offset", lambda data: patched(data, 24, b"\x41"), (11, "HEADER")),
    ("B2 no manifest", lambda data: patched(data, 32, bytes(8)), (11, "HEADER")),
    ("B2 long manifest", lambda data: patched(data, 32, struct.pack("<Q", 8388609)), (11, "HEADER")),
    ("B2 rest", lambda data: patched(data, 63, b"\x01"), (11, "HEADER")),
    ("B3 shorter", lambda data: data[:-1], (11, "FILE_LENGTH")),
    ("B3 longer", lambda data: data + b"\0", (11, "FILE_LENGTH")),
    ("B3 no boundary", lambda data: patched(data, 16, struct.pack("<Q", len(data) + 1)) + b"\0", (11, "FILE_LENGTH")),
    ("B3 no place", lambda data: patched(data, 32, struct.pack("<Q", 8388608)), (11, "FILE_LENGTH")),
    ("B4 digest", lambda data: patched(data, -16384, b"\0\0"), (11, "MANIFEST_DIGEST")),
    ("B4 manifest", lambda data: patched(data, 70, b"\0\0"), (11, "MANIFEST_DIGEST")),
    ("B4 length", lambda data: patched(data, -16352, struct.pack("<I", 16349)), (11, "SLOT")),
    ("B4 rest", lambda data: patched(data, -1, b"\x01"), (11, "SLOT")),
    ("B5 header", lambda data: patched(data, 10, b"\x01"), (11, "HEADER_MISMATCH")),
    ("B10 manifest", lambda data: patched(data, 4095, b"\x01"), (11, "PADDING")),
    ("B10 section", lambda data: patched(data, 8191, b"\x01"), (11, "PADDING")),
    ("B10 slot", lambda data: patched(data, -16385, b"\x01"), (11, "PADDING")),
    ("B11 model", lambda data: patched(data, 4096, b"g"), (11, "SECTION_DIGEST")),
    ("B11 tokenizer", lambda data: patched(data, 8192, b"g"), (11, "SECTION_DIGEST")),
]


@pytest.mark.parametrize(("change", "refusal"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_changed_bytes(judge, change, refusal):
    assert judge(change(bundle())) == refusal


SLOTS = [
    ("empty", b"", (11, "SLOT")),
    ("no array", b"\xa0", (11, "SLOT")),
    ("not shortest", b"\x98\x00", (11, "SLOT")),
    ("more", b"\x80\x80", (11, "SLOT")),
    ("no entry", packed([1]), (11, "SLOT")),
    ("open", packed([{"algorithm": "x", "public_key": b"", "signature": b"", "more": 1}]), (11, "SLOT")),
    ("lacking", packed([{"algorithm": "x", "public_key": b""}]), (11, "SLOT")),
    ("text", packed([{"algorithm": "x", "public_key": "", "signature": b""}]), (11, "SLOT")),
    ("nested", packed([{"algorithm": "x", "public_key": [], "signature": b""}]), (11, "SLOT")),
    ("too deep", b"\x81" * 9 + b"\x80", (11, "SLOT")),
    ("1025 of algorithm", packed([{"algorithm": "x" * 1025, "public_key": b"", "signature": b""}]), (14, "TOO_LONG")),
    ("65", packed([{"algorithm": "x", "public_key": b"", "signature": b""}] * 65), (14, "TOO_MANY_ENTRIES")),
    ("1025", packed([{"algorithm": "x", "public_key": b"", "signature": bytes(1025)}]), (14, "TOO_LONG")),
    ("algorithm", packed([{"algorithm": "x", "public_key": b"", "signature": b""}]), (12, "UNKNOWN_ALGORITHM")),
]


@pytest.mark.parametrize(("entries", "refusal"), [row[1:] for row in SLOTS], ids=[row[0] for row in SLOTS])
def test_b4_and_b8_entries_of_the_slot(judge, entries, refusal):
    assert judge(bundle(entries=lambda payload: entries)) == refusal


# B5


FIELDS = [
    ("type", {"type": "kinetic-receipt"}, (11, "NOT_A_BUNDLE")),
    ("long type", {"type": "a" * 1025}, (11, "NOT_A_BUNDLE")),
    ("version", {"version": 2, "more": 1}, (13, "VERSION")),
    ("version 0", {"version": 0}, (11, "OUT_OF_RANGE")),
    ("true", {"version": True}, (11, "WRONG_TYPE")),
    ("unknown", {"more": 1}, (11, "UNKNOWN_FIELD")),
    ("float", {"release": 1.5}, (11, "FLOAT")),
    ("null", {"release": None}, (11, "BAD_CBOR")),
    ("tag", {"release": cbor2.CBORTag(1, 1)}, (11, "BAD_CBOR")),
    ("bignum", {"release": 2**53}, (11, "OUT_OF_RANGE")),
    ("negative", {"release": -1}, (11, "OUT_OF_RANGE")),
    ("header", {"header": bytes(63)}, (11, "OUT_OF_RANGE")),
    ("other header", {"header": bytes(64)}, (11, "HEADER_MISMATCH")),
    ("header is last", {"header": b"", "profiles": [{}] * 65}, (14, "TOO_MANY_ENTRIES")),
    ("name", {"name": "Tiny"}, (11, "OUT_OF_RANGE")),
    ("name of a line", {"name": "tiny\n"}, (11, "OUT_OF_RANGE")),
    ("name of 65", {"name": "a" * 65}, (11, "OUT_OF_RANGE")),
    ("name of 1025", {"name": "a" * 1025}, (11, "OUT_OF_RANGE")),
    ("architecture of 1025", {"architecture": "a" * 1025}, (14, "TOO_LONG")),
    ("no architecture", {"architecture": ""}, (11, "OUT_OF_RANGE")),
    ("architectures", {"architecture": "a b"}, (11, "OUT_OF_RANGE")),
    ("deep", {"ext": {"a": [[[[[[[[]]]]]]]]}}, (14, "TOO_DEEP")),
    ("many", {"ext": {"a": [[]] * 262145}}, (14, "TOO_MANY_CONTAINERS")),
    ("extension", {"ext": {"a": 1}}, (11, "WRONG_TYPE")),
    ("extension's name", {"ext": {"A": ""}}, (11, "OUT_OF_RANGE")),
    ("long extension", {"ext": {"a": "b" * 65537}}, (14, "TOO_LONG")),
    ("65 extensions", {"ext": {f"a{i}": "" for i in range(65)}}, (14, "TOO_MANY_ENTRIES")),
    ("falling", {"ext": {"a": "", "b": ""}, "crit": ["b", "a"]}, (11, "OUT_OF_RANGE")),
    ("sources", {"sources": [named_file()] * 1025}, (14, "TOO_MANY_ENTRIES")),
    ("digest", {"sources": [named_file(sha256="")]}, (11, "WRONG_TYPE")),
    ("derivations", {"derivation": [{}, {}]}, (14, "TOO_MANY_ENTRIES")),
    ("derivation", {"derivation": [{"tool": "a"}]}, (11, "MISSING_FIELD")),
    ("two lines", {"derivation": [made("a\x85b")]}, (11, "OUT_OF_RANGE")),
    ("long line", {"derivation": [made("a" * 1025)]}, (14, "TOO_LONG")),
    ("profiles", {"profiles": [{}] * 65}, (14, "TOO_MANY_ENTRIES")),
    ("B6 crit", {"crit": ["a"]}, (11, "CRITICAL")),
    ("B6 unknown crit", {"ext": {"a": ""}, "crit": ["a"]}, (13, "CRITICAL")),
]


@pytest.mark.parametrize(("changes", "refusal"), [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS])
def test_b5_and_b6_fields(judge, changes, refusal):
    assert judge(bundle(**changes)) == refusal


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\n", "\x7f", "a" * 256, "\u00e4" * 128, "a" * 1025])
def test_b5_file_names(judge, name):
    assert judge(bundle(file=name)) == judge(bundle(sources=[named_file(name=name)])) == (11, "OUT_OF_RANGE")


@pytest.mark.parametrize("name", ["...", ".a", " ", "a" * 255, "\u2028\ud7ff"])
def test_b5_odd_file_names(judge, name):
    assert judge(bundle(file=name))["file"] == name


@pytest.mark.parametrize(
    "changes", [{"isa": "plain"}, {"cores": 0}, {"threads": 1025}, {"prompt_rows": 4097}, {"device": "t" * 1025}]
)
def test_b5_profiles(judge, changes):
    profile = {"device": "cuda", "isa": "any", "cores": 1, "threads": 1, "prompt_rows": 1}
    assert judge(bundle(profiles=[profile]))["name"] == "tiny"
    assert judge(bundle(profiles=[profile | changes])) == (11, "OUT_OF_RANGE")


ENCODINGS = [
    ("more", lambda payload: payload + b"\0", "BAD_CBOR"),
    ("less", lambda payload: payload[:-1], "BAD_CBOR"),
    ("no table", lambda payload: b"\x80", "WRONG_TYPE"),
    ("lacking", lambda payload: b"\xa0", "MISSING_FIELD"),
    ("long integer", lambda payload: payload.replace(b"release\x03", b"release\x18\x03"), "NOT_CANONICAL"),
    ("indefinite", lambda payload: b"\xbf" + payload[1:] + b"\xff", "NOT_CANONICAL"),
    ("undefined", lambda payload: payload.replace(b"release\x03", b"release\xf7"), "BAD_CBOR"),
    ("key of bytes", lambda payload: payload.replace(b"\x67release", b"\x47release"), "BAD_CBOR"),
    ("no UTF-8", lambda payload: payload.replace(b"release", b"releas\xff"), "BAD_CBOR"),
    ("surrogate", lambda payload: payload.replace(b"release", b"rele\xed\xa0\x80"), "BAD_CBOR"),
    ("order", lambda payload: b"\xa2\x61b\x00\x61a\x00", "NOT_CANONICAL"),
    ("twice", lambda payload: b"\xa2\x61a\x00\x61a\x00", "DUPLICATE_KEY"),
    ("huge array", lambda payload: b"\x9b" + b"\xff" * 8, "BAD_CBOR"),
]


@pytest.mark.parametrize(("edit", "name"), [row[1:] for row in ENCODINGS], ids=[row[0] for row in ENCODINGS])
def test_b5_encodings(judge, edit, name):
    assert judge(bundle(edit=edit)) == (11, name)


# B6 to B13


MODEL_LEAVES = leaves_of(gguf())
BIG = gguf(data=LEAF + 8)
TREES = [
    ("B5 none", [], (11, "OUT_OF_RANGE")),
    ("B5 65", usual() + [section("notes", b"x", name=f"n{i}") for i in range(62)], (14, "TOO_MANY_ENTRIES")),
    ("B5 name", with_section(0, name="A"), (11, "OUT_OF_RANGE")),
    ("B5 dot", with_section(0, name=".a"), (11, "OUT_OF_RANGE")),
    ("B5 kind", with_section(0, kind="a" * 65), (11, "OUT_OF_RANGE")),
    ("B5 flag", with_section(0, critical=1), (11, "WRONG_TYPE")),
    ("B5 negative", with_section(1, offset=-1), (11, "OUT_OF_RANGE")),
    ("B5 length", with_section(0, length=0), (11, "OUT_OF_RANGE")),
    ("B6 unknown", usual() + [section("notes", b"x", critical=True)], (11, "UNKNOWN_SECTION")),
    ("B6 uncritical", with_section(1, critical=False), (11, "SECTIONS")),
    ("B6 no model", usual()[1:], (11, "SECTIONS")),
    ("B6 two models", usual() + [section("gguf", gguf(), name="b")], (11, "SECTIONS")),
    ("B6 one name", with_section(1, name="gguf"), (11, "SECTIONS")),
    ("B6 no SHA-256", with_section(0, sha256=""), (11, "SECTIONS")),
    ("B6 SHA-256", with_section(1, sha256=bytes(32)), (11, "SECTIONS")),
    ("B7 offset", with_section(1, offset=4096), (11, "LAYOUT")),
    ("B7 length", with_section(2, length=2**53 - 1), (11, "LAYOUT")),
    ("B11 model", with_section(0, blake3=bytes(32)), (11, "SECTION_DIGEST")),
    ("B11 count", usual() + [section("leaves", MODEL_LEAVES * 2)], (11, "LEAF_COUNT")),
    ("B11 part", usual() + [section("leaves", MODEL_LEAVES[:31])], (11, "LEAF_COUNT")),
    ("B11 leaf", usual() + [section("leaves", bytes(32))], (11, "LEAF_DIGEST")),
    ("B11 index", [*usual(BIG), section("leaves", leaves_of(BIG)[:32] * 2)], (11, "LEAF_DIGEST")),
    ("B13 no GGUF", [section("gguf", b"GGML" + bytes(40))], (11, "BAD_GGUF")),
    ("B13 version", usual(gguf(version=1)), (11, "BAD_GGUF")),
    ("B13 cut", [section("gguf", gguf()[:100])], (11, "BAD_GGUF")),
    ("B13 nameless", [section("gguf", gguf([]))], (11, "ARCHITECTURE")),
    ("B13 tokenizer", [usual()[0], section("tokenizer", TOKENS), usual()[2]], (11, "TOKENIZER_MISMATCH")),
    ("B13 order", [usual()[0], section("tokenizer", TOKENS + ODD + MODEL), usual()[2]], (11, "TOKENIZER_MISMATCH")),
    ("B13 none", [usual()[0], usual()[2]], (11, "TOKENIZER_MISMATCH")),
    ("B13 unasked", [section("gguf", gguf([ARCHITECTURE])), usual()[1]], (11, "TOKENIZER_MISMATCH")),
    ("B13 no template", usual()[:2], (11, "TEMPLATE_MISMATCH")),
    ("B13 template", [*usual()[:2], section("template", TEMPLATE + TOOL_TEMPLATE + b"x")], (11, "TEMPLATE_MISMATCH")),
]


@pytest.mark.parametrize(("sections", "refusal"), [row[1:] for row in TREES], ids=[row[0] for row in TREES])
def test_sections(judge, sections, refusal):
    assert judge(bundle(sections)) == refusal


@pytest.mark.parametrize("bad", [row[1] for row in BAD_RECORDS], ids=[row[0] for row in BAD_RECORDS])
def test_b13_bad_keys(judge, bad):
    assert judge(bundle(usual(gguf([*RECORDS, bad])))) == (11, "BAD_GGUF")


def test_b13_odd_keys(judge):
    odd = [record(b"split.count", 1, b"\xff"), record(b"x" * 65535, 9, struct.pack("<IQ", 12, 0))]
    odd += [record(b"y", 8, counted(b"\xff")), record(b"z", 7, b"\x01")]
    assert judge(bundle(usual(gguf([*RECORDS, *odd]))))["name"] == "tiny"


def test_b13_keys_beyond_the_bound(judge, monkeypatch):
    keys = 24 + sum(map(len, RECORDS))
    monkeypatch.setattr(independent_forms, "MAX_GGUF_BYTES", keys)
    assert judge(bundle())["name"] == "tiny"
    monkeypatch.setattr(independent_forms, "MAX_GGUF_BYTES", keys - 1)
    assert judge(bundle()) == (11, "BAD_GGUF")


def test_b6_sections_come_before_extensions(judge):
    assert judge(bundle(with_section(1, critical=False), ext={"a": ""}, crit=["a"])) == (11, "SECTIONS")


def test_b13_another_architecture(judge):
    assert judge(bundle(architecture="gemma")) == (11, "ARCHITECTURE")


def test_b12_only_when_asked_for(judge):
    data = bundle(with_section(0, sha256=bytes(32)))
    assert judge(data)["name"] == "tiny"
    assert judge(data, sha256=True) == (11, "SECTION_SHA256")


def test_b11_names_the_leaf(tmp_path):
    data = bundle([*usual(BIG), section("leaves", leaves_of(BIG))])
    (tmp_path / "big.ktc").write_bytes(patched(data, 4096 + LEAF, b"\xff"))
    with pytest.raises(Refusal, match="leaf 1 ") as caught:
        check(tmp_path / "big.ktc")
    assert caught.value.name == "LEAF_DIGEST"


BAD_SIGNATURES = [
    ("zero", forged(signature=bytes(64)), "BAD_SIGNATURE"),
    ("short", forged(signature=bytes(63)), "BAD_SIGNATURE"),
    ("small R", forged(public_key=KEYS[0][0], signature=NEUTRAL + bytes(32)), "BAD_SIGNATURE"),
    ("big S", big_s, "BAD_SIGNATURE"),
    ("other key", forged(public_key=KEYS[1][0]), "BAD_SIGNATURE"),
    ("neutral key", forged(public_key=NEUTRAL), "BAD_KEY"),
    ("key of small order", forged(public_key=LOW_ORDER), "BAD_KEY"),
    ("short key", forged(public_key=KEYS[0][0][:31]), "BAD_KEY"),
    ("twice", lambda payload: packed([signature(payload, KEYS[0])] * 2), "REPEATED_KEY"),
    (
        "twice and bad",
        lambda p: packed([*[signature(p, KEYS[0])] * 2, {**signature(p, KEYS[1]), "signature": b""}]),
        "BAD_SIGNATURE",
    ),
    ("receipt", lambda p: packed([signature(p, KEYS[0], b"application/vnd.kinetic.receipt+cbor")]), "BAD_SIGNATURE"),
]


@pytest.mark.parametrize(
    ("entries", "name"), [row[1:] for row in BAD_SIGNATURES], ids=[row[0] for row in BAD_SIGNATURES]
)
def test_b8_signatures(judge, entries, name):
    assert judge(bundle(entries=entries)) == (12, name)


@pytest.mark.parametrize("name", ["tiny", "Tiny"])
@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 4096), lambda path: os.utime(path, ns=(1, 1))])
def test_a_file_that_changes_while_it_is_checked(tmp_path, monkeypatch, change, name):
    path = tmp_path / "tiny.ktc"
    path.write_bytes(bundle(name=name))
    read = independent_reader.read_manifest
    monkeypatch.setattr(independent_reader, "read_manifest", lambda *args: (change(path), read(*args))[1])
    with pytest.raises(Refusal) as caught:
        check(path)
    assert (caught.value.exit_code, caught.value.name) == (3, "FILE_CHANGED")
