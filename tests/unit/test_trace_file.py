"""Trace files: what is read, what is refused in a sentence, and how two of them are compared."""

import os
import struct

import pytest

from kinetic.api import trace_file
from kinetic.api.trace_file import compare, digest, encode, parse, read, write
from ktc import canonical
from ktc.errors import FileProblem, KtcError, LimitExceeded, Malformed, Unverifiable
from tests.support.sample_traces import FILE, floats, sample


def with_op(trace, number, **changes):
    ops = list(trace.ops)
    ops[number] = ops[number]._replace(**changes)
    return trace._replace(ops=ops)


def test_a_file_is_read_as_it_was_written(tmp_path):
    size = write(tmp_path / "a.cbor", sample())
    assert read(tmp_path / "a.cbor") == sample() and (tmp_path / "a.cbor").stat().st_size == size
    write(tmp_path / "a.cbor", sample(token=4))
    assert read(tmp_path / "a.cbor").head["token"] == 4 and os.listdir(tmp_path) == ["a.cbor"]


@pytest.mark.parametrize("limit", [9, 500])
def test_what_does_not_fit_is_not_written(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(trace_file, "MAX_BYTES", limit)
    with pytest.raises(LimitExceeded, match=f"take 36 bytes, and a trace has {limit} at most"):
        write(tmp_path / "a.cbor", sample())
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_written_nothing_is(tmp_path):
    with pytest.raises(FileProblem):
        write(tmp_path / "no" / "a.cbor", sample())
    assert os.listdir(tmp_path) == []


# --- hostile files ---


def table(**changes):
    """A trace as it lies in the file."""
    trace = sample()
    ops = [
        {"op": op.op, "weight": op.weight, "layer": op.layer, "shape": [1, op.width], "digest": digest(op.values)}
        | {"values": op.values}
        for op in trace.ops
    ]
    return trace.head | {"ops": ops} | changes


def ops(**changes):
    """The same, its first operation changed."""
    one = table()["ops"]
    return table(ops=[one[0] | changes, *one[1:]])


def without(key):
    return {name: value for name, value in table().items() if name != key}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([], "NOT_A_TRACE"),
        ({}, "NOT_A_TRACE"),
        (table(format="kinetic-receipt"), "NOT_A_TRACE"),
        (table(version=2), "VERSION"),
        (table(version=True), "VERSION"),
        (without("threads"), "BAD_TRACE"),
        (table(more=1), "BAD_TRACE"),
        (table(token=-1), "BAD_TRACE"),
        (table(token=True), "BAD_TRACE"),
        (table(engine_id="x" * 5000), "BAD_TRACE"),
        (table(engine_id=b"x"), "BAD_TRACE"),
        (table(model=[]), "BAD_TRACE"),
        (table(model={"architecture": "llama", "files": []}), "BAD_TRACE"),
        (table(model={"architecture": "llama", "files": [{}]}), "BAD_TRACE"),
        (table(model={"architecture": 1, "files": [FILE]}), "BAD_TRACE"),
        (table(adapters=[1]), "BAD_TRACE"),
        (table(overrides=[]), "BAD_TRACE"),
        (table(ops=[]), "BAD_TRACE"),
        (table(ops=[[]]), "BAD_TRACE"),
        (table(ops={}), "BAD_TRACE"),
        (ops(more=1), "BAD_TRACE"),
        (ops(op="\u202eembed"), "BAD_TRACE"),
        (ops(op="\u05d0"), "BAD_TRACE"),
        (ops(op=1), "BAD_TRACE"),
        (ops(layer=-2), "BAD_TRACE"),
        (ops(layer=True), "BAD_TRACE"),
        (ops(shape=[1, 3]), "BAD_TRACE"),
        (ops(shape=[2]), "BAD_TRACE"),
        (ops(values=b""), "BAD_TRACE"),
        (ops(values=b"abc"), "BAD_TRACE"),
        (ops(values="abcd"), "BAD_TRACE"),
        (ops(values=floats(1, 3)), "DIGEST"),
        (ops(digest=bytes(32)), "DIGEST"),
        (ops(digest="00"), "DIGEST"),
    ],
)
def test_what_is_no_sound_trace_is_one_sentence(tmp_path, value, name):
    (tmp_path / "a.cbor").write_bytes(canonical.encode(value))
    with pytest.raises(Malformed) as caught:
        read(tmp_path / "a.cbor")
    assert caught.value.name == name and str(caught.value).startswith(str(tmp_path / "a.cbor"))
    assert str(caught.value).isascii() and str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_every_beginning_and_every_flipped_byte_of_a_file_is_refused_or_the_same_trace():
    data = canonical.encode(table())
    assert parse(data) == sample() and encode(sample()) == data
    for end in range(len(data)):
        with pytest.raises(KtcError):
            parse(data[:end])
    for at in range(len(data)):
        try:
            found = parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        except KtcError:
            continue
        assert [op.values for op in found.ops] == [op.values for op in sample().ops], "values have digests"


def test_a_file_larger_than_the_limit_is_not_read(tmp_path, monkeypatch):
    size = write(tmp_path / "a.cbor", sample())
    for limit in (size, size - 1):
        monkeypatch.setattr(trace_file, "MAX_BYTES", limit)
        if limit == size:
            assert read(tmp_path / "a.cbor") == sample()
    with pytest.raises(LimitExceeded):
        read(tmp_path / "a.cbor")
    with pytest.raises(LimitExceeded):
        parse((tmp_path / "a.cbor").read_bytes())


# --- comparing ---


def test_two_that_are_the_same():
    other = sample(engine_id="reference:2", device_class="reference", threads=4, receipt="ff", token=1)
    found = compare(sample(), other)
    assert (found.exit_code, found.op) == (0, -1)
    assert found.sentence == "all 4 operations agree to the bit, and so do the logits of the unwatched pass"


def test_the_first_element_that_differs_is_named():
    other = with_op(with_op(sample(), 3, values=floats(7)), 2, values=floats(3, 4.5, 6))
    found = compare(sample(), other)
    assert found.sentence == (
        "operation 2 of 4, rope (layer 0), element 1: 0x40800000 (4) and 0x40900000 (4.5); "
        "2 of its 3 elements differ, the 2 before it agree"
    )
    assert found[1:] == (10, 2, "rope", "", 0, 1, ("40800000", "40900000"), 2, 3)
    first = compare(sample(), with_op(sample(), 0, values=floats(1, 3)))
    assert first.sentence.startswith(
        "operation 0 of 4, embed with token_embd.weight (outside of the layers), element 1"
    )
    assert first.sentence.endswith("1 of its 2 elements differ")


def test_what_reads_earlier_tokens_is_said_to():
    for op, does in (("attend", True), ("scan", True), ("gated", False)):
        one, other = (with_op(sample(), 2, op=op, values=floats(3, value)) for value in (1, 2))
        assert compare(one, other).sentence.endswith("which may be what differs") == does


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (float("nan"), struct.unpack("<f", b"\1\0\xc0\x7f")[0])])
def test_bits_count_and_not_values(a, b):
    one, two = (with_op(sample(), 3, values=floats(value)) for value in (a, b))
    assert compare(one, one).exit_code == 0
    assert compare(one, two)[1:3] == (10, 3)


def test_passes_that_nobody_watched_count_too():
    found = compare(sample(), sample(logits="33"))
    assert (found.exit_code, found.op, found.name) == (10, 4, "logits")
    assert "instructions that are fused there" in found.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "kinetic-9"},
        {"model": {"architecture": "llama", "files": [FILE | {"blake3": "ef"}]}},
        {"model": {"architecture": "qwen2", "files": [FILE]}},
        {"adapters": [FILE | {"scale": "1"}]},
        {"overrides": {"context": 0, "rope_scale": "2"}},
        {"input": "12"},
    ],
)
def test_traces_of_different_questions_say_nothing_about_each_other(changes):
    with pytest.raises(Unverifiable, match="say nothing about each other"):
        compare(sample(), sample(**changes))
    renamed = sample(
        model={"architecture": "llama", "files": [FILE | {"name": "other.gguf"}]}, overrides={"context": 9}
    )
    assert compare(sample(), renamed).exit_code == 0


def test_programs_with_other_operations():
    other = with_op(sample(), 2, op="scale")
    with pytest.raises(Unverifiable, match=r"operation 2 is rope \(layer 0\) of 3 elements .* and scale .* agree"):
        compare(sample(), other)
    with pytest.raises(Unverifiable, match="4 and 3 operations"):
        compare(sample(), sample()._replace(ops=sample().ops[:3]))
    assert compare(sample(), with_op(other, 1, values=floats(1, 0, 0))).op == 1, "a difference before counts"
