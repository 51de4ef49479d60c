"""The manifest: one table, one spelling, and nothing but refusals for anything else."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktc import layout, limits, manifest
from ktc.errors import KtcError
from ktc.slot import read_slot
from tests.support.sample_bundles import SEED, SLOT, forge

SOUND = forge()
LENGTH = int.from_bytes(SOUND[32:40], "little")
BYTES = SOUND[64 : 64 + LENGTH]
HEADER = layout.unpack_header(SOUND[:64])
TABLE = cbor2.loads(BYTES)
NAMES = ("TOO_LONG", "TOO_DEEP", "TOO_MANY_ENTRIES", "TOO_MANY_CONTAINERS", "FILE_TOO_LARGE")


def refusal(data):
    with pytest.raises(KtcError) as refused:
        manifest.read(data, HEADER)
    assert refused.value.exit_code in (11, 13, 14)
    return refused.value.name


def test_there_and_back():
    table = manifest.read(BYTES, HEADER)
    assert manifest.pack(table) == BYTES
    assert table["sections"][0]["blake3"] == TABLE["sections"][0]["blake3"].hex()
    assert table["sections"][1]["sha256"] == ""


def test_one_spelling():
    assert refusal(BYTES + b"\0") == "TRAILING_BYTES"
    assert refusal(BYTES[:-1]) == "TRUNCATED"
    assert refusal(cbor2.dumps(dict(reversed(TABLE.items())))) == "NOT_CANONICAL"
    assert refusal(b"") == "TRUNCATED"
    assert refusal(cbor2.dumps([TABLE], canonical=True)) == "NOT_A_BUNDLE"


@pytest.mark.parametrize("name", TABLE)
def test_every_field_must_be_there_and_of_its_kind(name):
    missing = {key: value for key, value in TABLE.items() if key != name}
    assert refusal(cbor2.dumps(missing, canonical=True)) == ("NOT_A_BUNDLE" if name == "type" else "MISSING_FIELD")
    wrong = TABLE | {name: True}
    assert refusal(cbor2.dumps(wrong, canonical=True)) == ("NOT_A_BUNDLE" if name == "type" else "WRONG_TYPE")


@pytest.mark.parametrize("name", TABLE["sections"][0])
def test_every_field_of_a_section(name):
    entry = {key: value for key, value in TABLE["sections"][0].items() if key != name}
    changed = TABLE | {"sections": [entry, *TABLE["sections"][1:]]}
    assert refusal(cbor2.dumps(changed, canonical=True)) == "MISSING_FIELD"
    entry[name] = 1.5
    assert refusal(cbor2.dumps(changed, canonical=True)) == "SIMPLE_VALUE"


TEXTS = {
    "name": ["", "A", "-a", ".a", "a b", "a/b", "\u00e9", "a\n"],
    "architecture": ["", "a b", "\u00e9", "a\n"],
    "file": ["", ".", "..", "a/b", "a\\b", "a\x7f"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_texts(name, text):
    assert refusal(cbor2.dumps(TABLE | {name: text}, canonical=True)) == "BAD_TEXT"


@pytest.mark.parametrize("text", ["...", "..a", ".gguf", "a..b", "\u00e9.gguf", "a b"])
def test_names_that_are_names(text):
    assert manifest.read(cbor2.dumps(TABLE | {"file": text}, canonical=True), HEADER)["file"] == text


def test_extensions():
    assert refusal(cbor2.dumps(TABLE | {"ext": {"a" * 65: ""}}, canonical=True)) == "OUT_OF_RANGE"
    assert refusal(cbor2.dumps(TABLE | {"architecture": "a" * 1025}, canonical=True)) == "TOO_LONG"
    many = {f"a{n}": "" for n in range(limits.MAX_EXTENSIONS + 1)}
    assert refusal(cbor2.dumps(TABLE | {"ext": many}, canonical=True)) == "TOO_MANY_ENTRIES"
    long = {"a": "x" * (limits.MAX_EXTENSION_BYTES + 1)}
    assert refusal(cbor2.dumps(TABLE | {"ext": long}, canonical=True)) == "TOO_LONG"
    twice = {"ext": {"a": "", "b": ""}, "crit": ["b", "a"]}
    assert refusal(cbor2.dumps(TABLE | twice, canonical=True)) == "NOT_ASCENDING"


PROFILE = {"device": "cpu", "isa": "avx2", "cores": 8, "threads": 8, "prompt_rows": 512}
PROFILES = {
    # 69: a profile holds bounded numbers and words of a list, and nothing else
    "sound": (PROFILE, ""),
    "library": (PROFILE | {"library": "/tmp/evil.so"}, "UNKNOWN_FIELD"),
    "environment": (PROFILE | {"env": {"LD_PRELOAD": "x"}}, "UNKNOWN_FIELD"),
    "fast math": (PROFILE | {"fast_math": True}, "UNKNOWN_FIELD"),
    "a million threads": (PROFILE | {"threads": 10**6}, "OUT_OF_RANGE"),
    "no thread": (PROFILE | {"threads": 0}, "OUT_OF_RANGE"),
    "threads as text": (PROFILE | {"threads": "8"}, "WRONG_TYPE"),
    "threads as truth": (PROFILE | {"threads": True}, "WRONG_TYPE"),
    "another device": (PROFILE | {"device": "tpu"}, "UNKNOWN_WORD"),
    "a GPU": (PROFILE | {"device": "cuda", "isa": "any"}, ""),
    "a GPU with a CPU's instructions": (PROFILE | {"device": "cuda"}, "OUT_OF_RANGE"),
    "rows": (PROFILE | {"prompt_rows": 4097}, "OUT_OF_RANGE"),
}


@pytest.mark.parametrize(("profile", "name"), PROFILES.values(), ids=PROFILES)
def test_profile(profile, name):
    data = cbor2.dumps(TABLE | {"profiles": [profile]}, canonical=True)
    if name:
        assert refusal(data) == name
    else:
        assert manifest.read(data, HEADER)["profiles"] == [profile]


def test_more_profiles_than_there_may_be():
    assert refusal(cbor2.dumps(TABLE | {"profiles": [PROFILE] * 65}, canonical=True)) == "TOO_MANY_ENTRIES"


@given(st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_change_is_refused_or_still_in_one_spelling(changes):
    data = bytearray(BYTES)
    for at, byte in changes:
        data[at] = byte
    try:
        table = manifest.read(bytes(data), HEADER)
    except KtcError as refused:
        assert refused.exit_code in (11, 13) or refused.name in NAMES
    else:
        assert manifest.pack(table) == data


VALUES = st.recursive(
    st.booleans() | st.integers(-5, 2**53) | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(TABLE)), VALUES)
def test_any_value_in_any_field(name, value):
    try:
        manifest.read(cbor2.dumps(TABLE | {name: value}, canonical=True), HEADER)
    except KtcError as refused:
        assert refused.exit_code in (11, 13) or refused.name in NAMES


@given(st.binary(max_size=64))
def test_any_header(data):
    try:
        header = layout.unpack_header(SOUND[: 64 - len(data)] + data)
        layout.check_header(header)
        layout.check_length(header, len(SOUND))
        layout.check_places(header, [])
    except KtcError as refused:
        assert refused.exit_code == 11


@given(st.integers(32, 400), st.binary(min_size=1, max_size=80))
def test_any_slot(at, data):
    digest = forge(seeds=[SEED])[-SLOT : -SLOT + 32]
    slot = bytearray(forge(seeds=[SEED])[-SLOT:])
    slot[at : at + len(data)] = data
    try:
        read_slot(bytes(slot), digest)
    except KtcError as refused:
        assert refused.name == "SLOT" or refused.exit_code == 14
