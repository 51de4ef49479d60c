"""The scanner of a model file's keys: what it finds, what it refuses, and that it reads no further than it must."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ktc import gguf_keys
from ktc.errors import Malformed
from ktc.gguf_keys import read_keys
from tests.support import sample_bundles as samples
from tests.support.sample_bundles import gguf, number_record, string, text_record, texts_record

ARCHITECTURE = text_record("general.architecture", "llama")


def scan(data):
    return read_keys(lambda length: data[:length], len(data))


def refusal(data):
    with pytest.raises(Malformed) as refused:
        scan(data)
    assert refused.value.name == "BAD_GGUF"
    return str(refused.value)


def record(name, kind, payload):
    return string(name) + struct.pack("<I", kind) + payload


def array(kind, count, payload):
    return struct.pack("<IQ", kind, count) + payload


def test_what_it_finds():
    keys = scan(gguf())
    assert (keys.version, keys.tensor_count, keys.architecture) == (3, 1, "llama")
    assert [key.name.decode() for key in keys.keys] == [
        "general.architecture",
        "tokenizer.chat_template",
        "tokenizer.ggml.tokens",
        "llama.block_count",
        "tokenizer.ggml.model",
    ]
    assert keys.tokenizer() == samples.TOKENIZER
    assert keys.template() == samples.TEMPLATE
    assert scan(gguf(version=2)).version == 2


def test_records_stand_in_order_of_their_bytes():
    texts = [
        "tokenizer.b",
        "tokenizer.chat_template.tool_use",
        "tokenizer.a",
        "tokenizer.chat_templates",
        "tokenizer.Z",
    ]
    others = ["tokenizers.a", "general.tokenizer.x", "xtokenizer.a"]
    records = {name: text_record(name, name) for name in texts + others}
    keys = scan(gguf([ARCHITECTURE, *records.values()]))
    assert keys.tokenizer() == b"".join(records[name] for name in ("tokenizer.Z", "tokenizer.a", "tokenizer.b"))
    templates = ("tokenizer.chat_template.tool_use", "tokenizer.chat_templates")
    assert keys.template() == b"".join(records[name] for name in templates)


def test_every_type_of_value():
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    records = [record(f"a.{kind}", kind, b"\1" * size) for kind, size in sizes.items()]
    records += [record(f"b.{kind}", 9, array(kind, 3, b"\1" * 3 * size)) for kind, size in sizes.items()]
    records += [record(f"c.{kind}", 9, array(kind, 0, b"")) for kind in [*sizes, 8]]
    keys = scan(gguf([*records, ARCHITECTURE, texts_record("d", ["", "x", "y" * 300])]))
    assert len(keys.keys) == len(records) + 2
    assert all(keys.head[key.begin : key.end] == data for key, data in zip(keys.keys, records, strict=False))


@pytest.mark.parametrize("first", [1, 100, 1 << 22])
def test_it_reads_only_the_beginning(monkeypatch, first):
    monkeypatch.setattr(gguf_keys, "_FIRST_READ", first)
    data = gguf([ARCHITECTURE, texts_record("tokenizer.ggml.tokens", ["token"] * 300)], bytes(1 << 23))
    asked = []
    keys = read_keys(lambda length: asked.append(length) or data[:length], len(data))
    assert keys.records(lambda name: True) == ARCHITECTURE + texts_record("tokenizer.ggml.tokens", ["token"] * 300)
    assert asked == sorted(asked)
    assert asked[-1] <= max(first, 10_000)
    assert len(asked) < 20


HUGE = 2**64 - 1
REFUSED = {
    "empty": (b"", "the header"),
    "magic": (b"GGML" + gguf()[4:], "begins with"),
    "version 0": (gguf(version=0), "version is 0"),
    "version 4": (gguf(version=4), "version is 4"),
    "big-endian": (gguf(version=3 << 24), "big-endian"),
    "keys": (gguf()[:16] + struct.pack("<Q", HUGE) + gguf()[24:], "keys"),
    "keys where tensors begin": (gguf()[:16] + struct.pack("<Q", 7) + gguf()[24:], "not 1 to"),
    "empty key": (gguf([ARCHITECTURE, text_record("", "x")]), "not 1 to"),
    "endless key": (gguf([ARCHITECTURE, struct.pack("<Q", HUGE)]), "not 1 to"),
    "key that is no text": (gguf([ARCHITECTURE, struct.pack("<Q", 2) + b"\xff\xfe" + bytes(8)]), "not UTF-8"),
    "key twice": (gguf([ARCHITECTURE, ARCHITECTURE]), "twice"),
    "type 13": (gguf([ARCHITECTURE, record("a", 13, bytes(8))]), "unknown type 13"),
    "type 2^32-1": (gguf([ARCHITECTURE, record("a", 2**32 - 1, bytes(8))]), "unknown type"),
    "bool 2": (gguf([ARCHITECTURE, record("a", 7, b"\2")]), "boolean"),
    "bools": (gguf([ARCHITECTURE, record("a", 9, array(7, 3, b"\0\1\2"))]), "booleans"),
    "array of arrays": (gguf([ARCHITECTURE, record("a", 9, array(9, 1, array(4, 0, b"")))]), "array of the type 9"),
    "array of type 77": (gguf([ARCHITECTURE, record("a", 9, array(77, 1, bytes(9)))]), "array of the type 77"),
    "endless string": (gguf([ARCHITECTURE, record("a", 8, struct.pack("<Q", HUGE))]), "are left"),
    "string past the end": (gguf([ARCHITECTURE, record("a", 8, struct.pack("<Q", 1000))]), "are left"),
    "endless array": (gguf([ARCHITECTURE, record("a", 9, array(12, HUGE, b""))]), "are left"),
    "array that wraps": (gguf([ARCHITECTURE, record("a", 9, array(12, 2**61 + 1, b""))]), "are left"),
    "endless strings": (gguf([ARCHITECTURE, record("a", 9, array(8, HUGE, b""))]), "cannot hold"),
    "endless string in an array": (gguf([ARCHITECTURE, record("a", 9, array(8, 1, b"\xff" * 8))]), "are left"),
    "strings past the end": (gguf([ARCHITECTURE, record("a", 9, array(8, 2, struct.pack("<Q", 140)))]), ""),
    "no architecture": (gguf([text_record("a", "b")]), "general.architecture"),
    "architecture as a number": (gguf([number_record("general.architecture", 1)]), "general.architecture"),
    "empty architecture": (gguf([text_record("general.architecture", "")]), "cannot be"),
    "odd architecture": (gguf([text_record("general.architecture", "a b")]), "cannot be"),
    "one of two parts": (gguf([ARCHITECTURE, record("split.count", 2, b"\2\0")]), "split model"),
    "parts as text": (gguf([ARCHITECTURE, text_record("split.count", "1")]), "split model"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED.values(), ids=REFUSED)
def test_what_it_refuses(data, why):
    assert why in refusal(data)


@pytest.mark.parametrize("payload", [b"\0\0", b"\1\0"])
def test_a_split_of_one(payload):
    assert scan(gguf([ARCHITECTURE, record("split.count", 2, payload)])).architecture == "llama"


def test_what_only_matters_to_whoever_runs_the_model():
    """Tensors, alignment, and odd but readable keys."""
    data = gguf([ARCHITECTURE, number_record("general.alignment", 3), text_record("a\0b", "x")])
    assert len(scan(data[:8] + struct.pack("<Q", HUGE) + data[16:]).keys) == 3


def test_keys_that_go_on_for_too_long(monkeypatch):
    monkeypatch.setattr(gguf_keys, "LONGEST_HEAD", 10_000)
    monkeypatch.setattr(gguf_keys, "_FIRST_READ", 100)
    assert "more than 10,000" in refusal(gguf([ARCHITECTURE, text_record("a", "x" * 20_000)]))


def test_cut_at_every_byte():
    data = gguf()
    end = max(key.end for key in scan(data).keys)
    for length in range(end):
        refusal(data[:length])


@given(st.binary(max_size=200))
@example(b"GGUF\3\0\0\0" + bytes(16))
def test_any_bytes(data):
    for head in (b"", gguf()[:24], gguf([ARCHITECTURE])[:60]):
        try:
            scan(head + data)
        except Malformed as refused:
            assert refused.name == "BAD_GGUF"


@given(st.lists(st.tuples(st.integers(0, len(gguf()) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_change_of_a_sound_file(changes):
    data = bytearray(gguf())
    for at, byte in changes:
        data[at] = byte
    try:
        keys = scan(bytes(data))
    except Malformed as refused:
        assert refused.name == "BAD_GGUF"
    else:
        assert all(8 < key.value <= key.end <= len(data) for key in keys.keys)


def test_it_agrees_with_the_engines_reader(tmp_path):
    pytest.importorskip("numpy")
    from kinetic.gguf import Gguf
    from tests.support.talking_model import write_talker
    from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

    for write in (write_talker, write_tiny_llama, write_tiny_gemma3):
        path = write(tmp_path / "model.gguf")
        keys = scan(path.read_bytes())
        with Gguf.open(path) as model:
            assert [key.name.decode() for key in keys.keys] == list(model.metadata)
            assert keys.architecture == model.metadata["general.architecture"]
            assert keys.tensor_count == len(model.tensors)
