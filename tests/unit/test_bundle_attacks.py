"""Hostile bundles, made by a writer of their own and signed as if they were sound: each is refused by its name.

Numbers are those of the list of attacks on bundles; conformance holds files of the same kinds.
"""

import os
import struct

import pytest

from ktc import limits
from ktc.errors import KtcError
from ktc.reader import open_bundle
from ktc.signature import key_pair
from ktc.trust import pinned
from ktc.verify import verify
from tests.support import sample_bundles as samples
from tests.support.sample_bundles import OTHER_SEED, SEED, Part, forge, gguf, leaf_list, parts, repacked


@pytest.fixture
def refused(tmp_path):
    """Exit code and name of the refusal of a file with these bytes; (0, "") if it is taken."""

    def judge(data, **options):
        path = tmp_path / "hostile.ktc"
        path.write_bytes(data)
        try:
            verify(path, sha256=True, **options)
        except KtcError as error:
            assert str(error)
            return error.exit_code, error.name
        return 0, ""

    return judge


def entry(index, **changes):
    """Changes the entry of one section."""
    return lambda table: table["sections"][index].update(changes)


def field(**changes):
    return lambda table: table.update(changes)


def test_the_sample_is_sound(refused):
    assert refused(forge()) == (0, "")
    assert refused(forge(seeds=(SEED, OTHER_SEED))) == (0, "")
    assert refused(forge(parts()[:3])) == (0, "")


HEADERS = {
    # 56: where the manifest is said to be
    "manifest past the end": ({"at": 2**40}, 11, "HEADER"),
    "manifest inside the header": ({"at": 0}, 11, "HEADER"),
    "manifest elsewhere": ({"at": 128}, 11, "HEADER"),
    "no manifest": ({"length": 0}, 11, "HEADER"),
    "manifest too long": ({"length": limits.MAX_MANIFEST_BYTES + 1}, 11, "HEADER"),
    "manifest longer than the file": ({"length": limits.MAX_MANIFEST_BYTES}, 11, "FILE_LENGTH"),
    "manifest length wraps": ({"length": 2**64 - 1}, 11, "HEADER"),
    "manifest one byte short": ({"length": 500}, 11, "MANIFEST_DIGEST"),
    "not zero at its end": ({"rest": 2**56}, 11, "HEADER"),
    # 57: how long the file is said to be
    "file shorter": ({"size": 40_000}, 11, "FILE_LENGTH"),
    "file longer": ({"size": 4096}, 11, "FILE_LENGTH"),
    "100 TB": ({"size": 10**14}, 11, "FILE_LENGTH"),
    # 70: what this version does not know
    "flag": ({"flags": 1}, 11, "FLAGS"),
    "highest flag": ({"flags": 2**31}, 11, "FLAGS"),
    "major version": ({"major": 2}, 13, "VERSION"),
    "major version 0": ({"major": 0}, 13, "VERSION"),
    "minor version": ({"minor": 9}, 0, ""),
}


@pytest.mark.parametrize(("fields", "code", "name"), HEADERS.values(), ids=HEADERS)
def test_header(refused, fields, code, name):
    assert refused(forge(header=fields, seeds=[SEED])) == (code, name)


def test_a_file_of_no_whole_boundaries(refused):
    assert refused(forge(header={"size": len(forge()) + 1}) + b"\0") == (11, "FILE_LENGTH")


def test_a_sparse_file_as_long_as_it_says(tmp_path):
    path = tmp_path / "sparse.ktc"
    path.write_bytes(forge(header={"size": 2**40}))
    os.truncate(path, 2**40)
    with pytest.raises(KtcError) as error:
        open_bundle(path)
    assert error.value.name == "MANIFEST_DIGEST"


LAYOUTS = {
    # 58: where sections are said to be
    "overlap": entry(1, offset=4096),
    "out of order": lambda table: table["sections"].reverse(),
    "unaligned": entry(0, offset=4097),
    "inside the manifest": entry(0, offset=64),
    "inside the header": entry(0, offset=0),
    "past the slot": entry(3, length=4097),
    "length wraps with offset": entry(3, length=2**53 - 1),
    "offset wraps": entry(3, offset=2**53 - 1),
    "one boundary too far": entry(3, offset=20480),
    "shorter than its content": entry(3, length=31),  # attack 59: bytes that are listed nowhere
    "into the slot": entry(3, length=8192),
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
def test_places(refused, change):
    code, name = refused(forge(manifest=change, seeds=[SEED]))
    assert (code, name) in ((11, "LAYOUT"), (11, "PADDING"))
    assert name == "LAYOUT" or change is LAYOUTS["shorter than its content"]


def test_room_for_a_section_that_no_one_lists(refused):
    """59: all zero, and before the slot."""
    size = len(forge()) + 4096
    wide = forge(header={"size": size}, seeds=[SEED])
    assert refused(wide[: -samples.SLOT] + bytes(4096) + wide[-samples.SLOT :]) == (11, "LAYOUT")


def put(at, data):
    def change(out):
        out[at : at + len(data)] = data

    return change


def test_bytes_that_are_listed_nowhere(refused):
    """59."""
    length = int.from_bytes(forge()[32:40], "little")
    assert refused(forge(content=put(64 + length, b"\1"))) == (11, "PADDING")
    assert refused(forge(content=put(4096 + len(gguf()), b"PK\3\4"))) == (11, "PADDING")
    assert refused(forge(content=put(4095, b"\x80"))) == (11, "PADDING")
    assert refused(forge()[: -samples.SLOT] + bytes(4096) + forge()[-samples.SLOT :]) == (11, "FILE_LENGTH")


@pytest.mark.parametrize("foreign", [b"PK\5\6" + bytes(18), b"\x7fELF", b"<html>", b"%PDF-1.7\n"])
def test_another_format_around_it(refused, foreign):
    """60."""
    sound = forge(seeds=[SEED])
    assert refused(sound + foreign) == (11, "FILE_LENGTH")
    assert refused(foreign + sound) == (11, "NOT_A_BUNDLE")
    assert refused(foreign + sound[len(foreign) :]) == (11, "NOT_A_BUNDLE")
    assert refused(forge(slot=put(9000, foreign))) == (11, "SLOT")


@pytest.mark.parametrize(
    "name", ["../x", "/x", "C:\\x", "a\\..\\b", "CON", "a\0", "", ".", "..", "x" * 65, "x" * 2000, "\u00e9", "a b"]
)
def test_section_names(refused, name):
    """62: there are no characters to make a path of."""
    expected = (11, "OUT_OF_RANGE" if len(name) > 64 else "BAD_TEXT")
    assert refused(forge(manifest=entry(2, name=name))) == expected
    assert refused(forge(manifest=entry(2, kind=name))) == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "a\n"])
def test_names_of_files(refused, name):
    assert refused(forge(manifest=field(file=name))) == (11, "BAD_TEXT")


@pytest.mark.parametrize("name", ["x" * 255, "x" * 256, "\u00e9" * 128, "x" * 2000])
def test_names_of_files_count_in_bytes(refused, name):
    expected = (0, "") if len(name.encode()) <= 255 else (11, "OUT_OF_RANGE")
    assert refused(forge(manifest=field(file=name))) == expected
    source = {"name": name, "size": 1, "blake3": bytes(32), "sha256": bytes(32)}
    assert refused(forge(manifest=field(sources=[source]))) == expected


DIGESTS = {
    # 63: a digest has one name, one length and one spelling
    "short": (entry(0, blake3=bytes(31)), "BAD_HEX"),
    "long": (entry(0, blake3=bytes(33)), "BAD_HEX"),
    "empty": (entry(0, blake3=b""), "BAD_HEX"),
    "text": (entry(0, blake3="00" * 32), "WRONG_TYPE"),
    "prefixed": (entry(0, blake3="blake3:" + "00" * 32), "WRONG_TYPE"),
    "another hash": (entry(0, md5=bytes(16)), "UNKNOWN_FIELD"),
    "a named hash": (entry(0, hash="none"), "UNKNOWN_FIELD"),
    "no hash": (lambda table: table["sections"][0].pop("blake3"), "MISSING_FIELD"),
    "no sha256": (entry(0, sha256=""), "SECTIONS"),
    "sha256 of a small section": (entry(1, sha256=bytes(32)), "SECTIONS"),
    "absence in another spelling": (entry(1, sha256=b""), "NOT_CANONICAL"),
    "wrong": (entry(0, blake3=bytes(32)), "SECTION_DIGEST"),
    "wrong sha256": (entry(0, sha256=bytes(32)), "SECTION_SHA256"),
}


@pytest.mark.parametrize(("change", "name"), DIGESTS.values(), ids=DIGESTS)
def test_digests(refused, change, name):
    assert refused(forge(manifest=change, seeds=[SEED])) == (11, name)


def with_leaves(data, model=None):
    return [*parts(model)[:3], Part("leaves", data)]


def test_leaves_and_the_flat_digest_disagree(refused):
    """64."""
    big = gguf(data=os.urandom(3 * samples.LEAF))
    listed = leaf_list(big)
    assert refused(forge(with_leaves(listed, big))) == (0, "")
    for wrong in (bytes(len(listed)), listed[32:64] + listed[:32] + listed[64:]):
        assert refused(forge(with_leaves(wrong, big))) == (11, "LEAF_DIGEST")
    for wrong in (listed[:-32], listed + listed[:32], listed[:-1], b"\0"):
        assert refused(forge(with_leaves(wrong, big))) == (11, "LEAF_COUNT")
    assert refused(forge(with_leaves(listed, big), manifest=entry(0, blake3=bytes(32)))) == (11, "SECTION_DIGEST")


def test_leaves_that_trade_places(refused):
    model = bytearray(gguf(data=os.urandom(3 * samples.LEAF)))
    sound = forge(parts(bytes(model)))
    swapped = bytearray(sound)
    first, second = (slice(4096 + n * samples.LEAF, 4096 + (n + 1) * samples.LEAF) for n in (1, 2))
    swapped[first], swapped[second] = sound[second], sound[first]
    assert refused(bytes(swapped)) == (11, "LEAF_DIGEST")


def test_parts_of_different_models(refused):
    """66 and 54."""
    other = gguf(data=b"another!" * 9)
    sound = forge(seeds=[SEED])
    assert refused(sound[:4096] + other + sound[4096 + len(other) :]) == (11, "LEAF_DIGEST")
    tokenizer = samples.MODEL + samples.texts_record("tokenizer.ggml.tokens", ["<end>", " red", " BLU"])
    chosen = parts()
    assert refused(forge([chosen[0], Part("tokenizer", tokenizer), *chosen[2:]])) == (11, "TOKENIZER_MISMATCH")
    assert refused(forge([chosen[0], *chosen[2:]])) == (11, "TOKENIZER_MISMATCH")
    unsorted = Part("tokenizer", samples.TOKENS + samples.MODEL)
    assert refused(forge([chosen[0], unsorted, *chosen[2:]])) == (11, "TOKENIZER_MISMATCH")
    template = Part("template", samples.text_record("tokenizer.chat_template", "{{ nothing }}"))
    assert refused(forge([*chosen[:2], template, chosen[3]])) == (11, "TEMPLATE_MISMATCH")
    assert refused(forge([*chosen[:2], chosen[3]])) == (11, "TEMPLATE_MISMATCH")
    assert refused(forge(manifest=field(architecture="gemma3"))) == (11, "ARCHITECTURE")


def test_a_template_where_the_model_has_none(refused):
    bare = gguf([key for key in samples.KEYS if key != samples.TEMPLATE])
    assert refused(forge(parts(bare))) == (11, "TEMPLATE_MISMATCH")
    chosen = parts(bare)
    assert refused(forge([*chosen[:2], chosen[3]])) == (0, "")


def test_another_release(refused):
    """67: an older one in place of the new one is refused where a least one is asked for."""
    assert refused(forge(), min_release=3) == (0, "")
    assert refused(forge(), min_release=4) == (12, "OLD_RELEASE")
    trust = pinned({"k": key_pair(SEED).public}, "bundle")._replace(releases={"tiny": 4})
    assert refused(forge(seeds=[SEED]), trust=trust) == (12, "OLD_RELEASE")
    assert refused(forge(seeds=[SEED]), trust=trust._replace(releases={"tiny": 3, "other": 9})) == (0, "")
    assert refused(forge(seeds=[SEED]), trust=trust._replace(mode="warn")) == (0, "")
    assert refused(forge(manifest=field(release=2**53 - 1))) == (0, "")
    assert refused(forge(manifest=field(release=-1))) == (11, "OUT_OF_RANGE")


def test_signatures_removed_or_exchanged(refused):
    """68."""
    trust = pinned({"k": key_pair(SEED).public}, "bundle")
    signed, other = forge(seeds=[SEED]), forge(seeds=[SEED], manifest=field(name="tinx"))
    assert refused(signed, trust=trust) == (0, "")
    assert refused(forge(), trust=trust) == (12, "UNSIGNED")
    assert refused(forge(seeds=[OTHER_SEED]), trust=trust) == (12, "UNTRUSTED_KEY")
    assert refused(signed[: -samples.SLOT]) == (11, "FILE_LENGTH")
    assert refused(signed[: -samples.SLOT] + bytes(samples.SLOT)) == (11, "MANIFEST_DIGEST")
    assert refused(signed[: -samples.SLOT] + other[-samples.SLOT :]) == (11, "MANIFEST_DIGEST")
    stolen = signed[: -samples.SLOT + 32] + other[-samples.SLOT + 32 :]
    assert refused(stolen) == (12, "BAD_SIGNATURE")
    assert refused(forge(seeds=[SEED, SEED])) == (12, "REPEATED_KEY")
    assert refused(repacked(signed, field(name="tinz"), [SEED]), trust=trust) == (0, "")


def cbor(data):
    """Puts other signatures into the slot."""

    def change(tail):
        tail[32:36] = struct.pack("<I", len(data))
        tail[36:] = data + bytes(samples.SLOT - 36 - len(data))

    return change


SLOTS = {
    "no CBOR": (cbor(b"\xff"), 11, "SLOT"),
    "empty": (cbor(b""), 11, "SLOT"),
    "null": (cbor(b"\xf6"), 11, "SLOT"),
    "a map": (cbor(b"\xa0"), 11, "SLOT"),
    "long head": (cbor(b"\x98\x00"), 11, "SLOT"),
    "indefinite": (cbor(b"\x9f\xff"), 11, "SLOT"),
    "two values": (cbor(b"\x80\x80"), 11, "SLOT"),
    "a number": (cbor(b"\x81\x00"), 11, "SLOT"),
    "nested": (cbor(b"\x81" * 100 + b"\x80"), 11, "SLOT"),
    "too many": (
        cbor(b"\x98\x41" + samples.cbor2.dumps(dict.fromkeys(["algorithm", "public_key", "signature"], "")) * 65),
        11,
        "SLOT",
    ),
    "longer than the slot": (put(32, struct.pack("<I", samples.SLOT)), 11, "SLOT"),
    "length wraps": (put(32, b"\xff" * 4), 11, "SLOT"),
    "one byte more": (put(32, struct.pack("<I", 2)), 11, "SLOT"),
    "its last byte": (put(samples.SLOT - 1, b"\1"), 11, "SLOT"),
}


@pytest.mark.parametrize(("change", "code", "name"), SLOTS.values(), ids=SLOTS)
def test_slot(refused, change, code, name):
    assert refused(forge(slot=change)) == (code, name)


def test_more_signatures_than_there_may_be(refused):
    entry = {"algorithm": "ed25519", "public_key": bytes(32), "signature": bytes(64)}
    data = samples.cbor2.dumps([entry] * 65, canonical=True)
    assert refused(forge(slot=cbor(data))) == (14, "TOO_MANY_ENTRIES")
    long = samples.cbor2.dumps([entry | {"signature": bytes(2000)}], canonical=True)
    assert refused(forge(slot=cbor(long))) == (14, "TOO_LONG")
    for algorithm in ("rsa", "ed25519 " * 20):
        data = samples.cbor2.dumps([entry | {"algorithm": algorithm}], canonical=True)
        assert refused(forge(slot=cbor(data))) == (12, "UNKNOWN_ALGORITHM")


def test_more_of_something_than_there_may_be(refused):
    source = {"name": "a.gguf", "size": 1, "blake3": bytes(32), "sha256": bytes(32)}
    assert refused(forge(manifest=field(sources=[source] * 1025))) == (14, "TOO_MANY_ENTRIES")
    derivation = {"tool": "quantize", "tool_version": "1", "settings": "q4_0", "files": [source]}
    assert refused(forge(manifest=field(derivation=[derivation]))) == (0, "")
    assert refused(forge(manifest=field(derivation=[derivation] * 2))) == (14, "TOO_MANY_ENTRIES")
    optional = [Part(f"extra{n}", b"x", critical=False) for n in range(61)]
    assert refused(forge(parts() + optional[:60])) == (0, "")
    assert refused(forge(parts() + optional)) == (14, "TOO_MANY_ENTRIES")


def test_what_this_version_does_not_know(tmp_path, refused):
    """70."""
    extra = Part("licence", b"do what you like", critical=True)
    assert refused(forge([*parts(), extra])) == (11, "UNKNOWN_SECTION")
    assert refused(forge([*parts(), extra], header={"minor": 3})) == (11, "UNKNOWN_SECTION")
    (tmp_path / "optional.ktc").write_bytes(forge([*parts(), extra._replace(critical=False)], header={"minor": 3}))
    assert "'licence'" in verify(tmp_path / "optional.ktc").warnings[0]
    damaged = forge([*parts(), extra._replace(critical=False)], content=put(20480, b"X"))
    assert refused(damaged) == (11, "SECTION_DIGEST")
    assert refused(forge(manifest=field(ext={"a": "b"}))) == (0, "")
    assert refused(forge(manifest=field(ext={"a": "b"}, crit=["a"]))) == (13, "CRITICAL")
    assert refused(forge(manifest=field(crit=["a"]))) == (11, "CRITICAL")
    assert refused(forge([*parts(), extra], manifest=field(ext={"a": "b"}, crit=["a"]))) == (11, "UNKNOWN_SECTION")
    assert refused(forge(manifest=field(version=2))) == (13, "VERSION")
    assert refused(forge(manifest=field(type="kinetic-receipt"))) == (11, "NOT_A_BUNDLE")
    assert refused(forge(manifest=field(more=1))) == (11, "UNKNOWN_FIELD")


def test_kinds_that_are_missing_or_there_twice(refused):
    chosen = parts()
    assert refused(forge(chosen[1:])) == (11, "SECTIONS")
    assert refused(forge([])) == (11, "SECTIONS")
    assert refused(forge([*chosen, chosen[0]])) == (11, "SECTIONS")
    twice = forge([*chosen, chosen[1]], manifest=entry(4, name="again"))
    assert refused(twice) == (11, "SECTIONS")
    assert refused(forge(manifest=entry(1, name="gguf"))) == (11, "SECTIONS")
    assert refused(forge([chosen[0]._replace(critical=False), *chosen[1:]])) == (11, "SECTIONS")


def test_a_damaged_version_is_no_other_version(refused):
    sound = forge()
    assert refused(sound[:8] + b"\3\0" + sound[10:]) == (11, "HEADER_MISMATCH")
    assert refused(sound[:8] + b"\1\x80" + sound[10:]) == (11, "HEADER_MISMATCH")


def test_the_header_in_the_manifest_is_another(refused):
    other = forge(header={"minor": 1})[:64]
    assert refused(forge(manifest=field(header=other))) == (11, "HEADER_MISMATCH")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (b"GGUF", "the header"),
        (gguf(version=1), "version is 1"),
        (gguf(samples.KEYS[1:]), "general.architecture"),
        (gguf([*samples.KEYS, samples.KEYS[0]]), "twice"),
        (gguf([*samples.KEYS, samples.number_record("split.count", 2)]), "split model"),
    ],
    ids=["cut", "version", "architecture", "twice", "part"],
)
def test_no_model_file_in_it(tmp_path, model, why):
    path = tmp_path / "model.ktc"
    path.write_bytes(forge(parts(model)))
    with pytest.raises(KtcError, match=why) as error:
        verify(path)
    assert (error.value.exit_code, error.value.name) == (11, "BAD_GGUF")
