"""Strict JSON and deterministic CBOR: what is refused, by which name, and that one value has one byte string."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktc import canonical, limits
from ktc.errors import KtcError, LimitExceeded, Malformed

INTEGERS = st.integers(-limits.MAX_INTEGER, limits.MAX_INTEGER)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def values(leaves):
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8
    )


def refusal(call, data):
    with pytest.raises(KtcError) as caught:
        call(data)
    assert caught.value.exit_code in (11, 14)
    return caught.value.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "BAD_JSON"),
        ("{", "BAD_JSON"),
        ("{} {}", "BAD_JSON"),
        ("{'a': 1}", "BAD_JSON"),
        ('{"a": 1,}', "BAD_JSON"),
        ('["\t"]', "BAD_JSON"),
        ("[01]", "BAD_JSON"),
        ("[+1]", "BAD_JSON"),
        ("[0x1]", "BAD_JSON"),
        ("[1] // note", "BAD_JSON"),
        ('["\\x41"]', "BAD_JSON"),
        ('{"seed": 1, "seed": 2}', "DUPLICATE_KEY"),
        ('{"a": 1, "\\u0061": 1}', "DUPLICATE_KEY"),
        ("[NaN]", "FLOAT"),
        ("[Infinity]", "FLOAT"),
        ("[-Infinity]", "FLOAT"),
        ("[1.0]", "FLOAT"),
        ("[1e999]", "FLOAT"),
        ("[1E2]", "FLOAT"),
        ("[-0]", "BAD_INTEGER"),
        ("[-0.0]", "FLOAT"),
        ("[9007199254740992]", "INTEGER_TOO_LARGE"),
        ("[-9007199254740992]", "INTEGER_TOO_LARGE"),
        ("[18446744073709551615]", "INTEGER_TOO_LARGE"),
        ("[1" + "0" * 5000 + "]", "INTEGER_TOO_LARGE"),
        ("[null]", "WRONG_TYPE"),
        ('["\\ud800"]', "NOT_UNICODE"),
        ('{"\\udfff": 1}', "NOT_UNICODE"),
    ],
)
def test_json_refusals(text, name):
    assert refusal(canonical.read_json, text.encode()) == name


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\xef\xbb\xbf{}", "BYTE_ORDER_MARK"),
        (b'["\xff"]', "NOT_UTF8"),
        (b'["\xed\xa0\x80"]', "NOT_UTF8"),  # a surrogate in CESU-8
        ("{}".encode("utf-16"), "NOT_UTF8"),
        ("{}".encode("utf-32-le"), "BAD_JSON"),
    ],
)
def test_json_encodings(data, name):
    assert refusal(canonical.read_json, data) == name


def test_json_takes_what_is_strict():
    text = ' {"a": [1, -9007199254740991, 9007199254740991, true, "\\u00e9\\ud83d\\ude00"], "b": {}} \r\n'
    assert canonical.read_json(text.encode()) == {"a": [1, -(2**53) + 1, 2**53 - 1, True, "é😀"], "b": {}}


@pytest.mark.parametrize("reader", [canonical.read_json, canonical.decode])
def test_depth_and_size_are_limits(reader):
    opening = b"[" if reader is canonical.read_json else b"\x81"
    assert refusal(reader, opening * 100_000) == "TOO_DEEP"
    assert refusal(reader, opening * (limits.MAX_DEPTH + 1)) == "TOO_DEEP"
    assert refusal(reader, b" " * (limits.MAX_FILE_BYTES + 1)) == "FILE_TOO_LARGE"


def test_deepest_allowed():
    nested: list = []
    for _ in range(limits.MAX_DEPTH - 1):
        nested = [nested]
    assert canonical.read_json(json.dumps(nested).encode()) == nested
    assert canonical.decode(canonical.encode(nested)) == nested


def test_many_empty_containers_are_a_limit():
    count = limits.MAX_CONTAINERS  # with the one around them, one too many
    assert refusal(canonical.read_json, b"[" + b"{}," * (count - 1) + b"{}]") == "TOO_MANY_CONTAINERS"
    assert refusal(canonical.decode, b"\x9a" + count.to_bytes(4, "big") + b"\x80" * count) == "TOO_MANY_CONTAINERS"


def test_brackets_inside_strings_are_text():
    text = "[" * 50 + '\\"' + "{" * 50
    assert canonical.read_json(json.dumps([text]).encode()) == [text]


def test_hostile_quotes_take_linear_time():
    refusal(canonical.read_json, b'["' + b'\\"' * 2_000_000)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("", "TRUNCATED"),
        ("f6", "SIMPLE_VALUE"),  # null
        ("f7", "SIMPLE_VALUE"),  # undefined
        ("e0", "SIMPLE_VALUE"),
        ("f820", "SIMPLE_VALUE"),
        ("f8f5", "SIMPLE_VALUE"),  # true in two bytes
        ("f93c00", "SIMPLE_VALUE"),  # 1.0
        ("f98000", "SIMPLE_VALUE"),  # -0.0
        ("fb3ff0000000000000", "SIMPLE_VALUE"),
        ("c24101", "TAG"),  # bignum 1
        ("c101", "TAG"),
        ("d8236161", "TAG"),  # regular expression
        ("81d81c8101", "TAG"),
        ("d9d9f701", "TAG"),
        ("1801", "NOT_CANONICAL"),
        ("1900ff", "NOT_CANONICAL"),
        ("1a0000ffff", "NOT_CANONICAL"),
        ("1b00000000ffffffff", "NOT_CANONICAL"),
        ("780161", "NOT_CANONICAL"),
        ("1b0020000000000000", "INTEGER_TOO_LARGE"),  # 2^53
        ("1bffffffffffffffff", "INTEGER_TOO_LARGE"),
        ("3bffffffffffffffff", "INTEGER_TOO_LARGE"),
        ("9fff", "INDEFINITE"),
        ("bfff", "INDEFINITE"),
        ("7f6161ff", "INDEFINITE"),
        ("1c", "INDEFINITE"),
        ("a2616101616102", "DUPLICATE_KEY"),
        ("a2616201616102", "NOT_CANONICAL"),  # keys out of order
        ("a10102", "WRONG_TYPE"),  # a key that is a number
        ("a1410102", "WRONG_TYPE"),  # a key that is bytes
        ("a1810102", "WRONG_TYPE"),
        ("62c328", "BAD_CBOR"),  # not UTF-8
        ("63eda080", "BAD_CBOR"),  # a surrogate
        ("0101", "TRAILING_BYTES"),
        ("8201", "TRUNCATED"),
        ("18", "TRUNCATED"),
        ("5b7fffffffffffffff", "TRUNCATED"),
        ("9bffffffffffffffff01", "TRUNCATED"),
        ("bbffffffffffffffff616101", "TRUNCATED"),
    ],
)
def test_cbor_refusals(data, name):
    assert refusal(canonical.decode, bytes.fromhex(data)) == name


@pytest.mark.parametrize(
    ("value", "data"),  # RFC 8949, appendix A
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (1000, "1903e8"),
        (1_000_000, "1a000f4240"),
        (1_000_000_000_000, "1b000000e8d4a51000"),
        (-1, "20"),
        (-1000, "3903e7"),
        (False, "f4"),
        (True, "f5"),
        (b"", "40"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("IETF", "6449455446"),
        ("ü", "62c3bc"),
        ([], "80"),
        ([1, [2, 3], [4, 5]], "8301820203820405"),
        ({}, "a0"),
        ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    ],
)
def test_cbor_known_answers(value, data):
    assert canonical.encode(value).hex() == data
    assert canonical.decode(bytes.fromhex(data)) == value


def test_keys_are_in_bytewise_order_of_their_encoding():
    keys = ["", "a", "b", "aa", "é", "z" * 23, "a" * 24, "\ufffd", "\U00010000"]
    encoded = canonical.encode(dict.fromkeys(reversed(keys), 0))
    assert list(canonical.decode(encoded)) == sorted(keys, key=canonical.encode)


class Number(int):
    pass


@pytest.mark.parametrize("value", [None, 1.0, (1,), {1: 2}, Number(1), bytearray(b"x"), {"a": {3}}, [float("nan")]])
def test_encode_takes_exact_types_only(value):
    with pytest.raises(Malformed):
        canonical.encode(value)


@given(values(INTEGERS | TEXTS | st.booleans() | st.binary(max_size=30)))
def test_cbor_round_trip(value):
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert canonical.encode(canonical.decode(data)) == data


@given(values(INTEGERS | TEXTS | st.booleans()))
def test_json_round_trip(value):
    assert canonical.read_json(json.dumps(value).encode()) == value
    assert canonical.read_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60))
def test_cbor_reader_takes_only_canonical_bytes(data):
    try:
        value = canonical.decode(data)
    except (Malformed, LimitExceeded):
        return
    assert canonical.encode(value) == data


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_json_reader_raises_nothing_else(data):
    with contextlib.suppress(Malformed, LimitExceeded):
        canonical.read_json(data)
