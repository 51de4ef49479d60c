"""Every bit of a signed receipt, flipped alone: refused if and only if it says something else."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import cbor2
import pytest

from conformance.run_vector import run_file
from conformance.vector_files import base, default_engine
from ktc.signature import key_pair

PUBLIC = key_pair(bytes(range(32))).public
PINNED = {"options": {"keys": {"alice": PUBLIC.hex()}}}
OTHER_ANSWER = {"engine": {"draws": [{"token": 4}] * 4}}
"""What an honest engine would draw if it were asked anything else."""

FORMS = ["signed.json", "signed.cbor"]
BEHIND = pytest.param("plain.cbor", marks=pytest.mark.slow)


def file(name: str) -> bytes:
    """A small receipt. In JSON with a carriage return and an escape, which one bit can turn into another spelling."""
    if name.endswith(".cbor"):
        return base(name)
    text = json.dumps(json.loads(base(name)), separators=(",", ":")).replace(" blue", " b\\u006Cue")
    return text.replace(',"sampling":', ',\r\n"sampling":').encode("ascii") + b"\n"


def flips(data: bytes):
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(flipped)


def meaning(data: bytes) -> Any:
    """What other readers make of a file, which take more than ours does; None if they make nothing of it."""
    try:
        if data[:1] in (b"{", b" ", b"\r", b"\n"):
            return json.loads(data)
        stream = BytesIO(data)
        value = cbor2.load(stream)
        return None if stream.read(1) else value
    except Exception:
        return None


@pytest.mark.parametrize("name", FORMS)
def test_with_a_pinned_key_a_flip_is_refused_iff_it_changes_what_is_said(name):
    data = file(name)
    said, kept = meaning(data), 0
    for bit, flipped in flips(data):
        outcome = run_file(flipped, PINNED)
        if meaning(flipped) == said and outcome.exit_code == 0:
            kept += 1
            assert outcome.signature.startswith("valid signature by alice")
        else:
            assert meaning(flipped) != said, f"bit {bit} changes nothing, and {outcome}"
            assert outcome.exit_code in (11, 12, 13, 14), f"bit {bit}: {outcome}"
            assert "valid" not in outcome.signature
    # A carriage return becomes a tab, and a digit of an escape a capital.
    assert kept == (2 if name.endswith(".json") else 0)


@pytest.mark.parametrize("name", ["plain.json", BEHIND])
def test_unsigned_no_flip_gets_a_wrong_verdict(name):
    """IDENTICAL only for the same question and answer: the honest engine draws otherwise for any other question."""
    data, engine = file(name), default_engine()
    true = run_file(data, {})
    codes = set()
    for bit, flipped in flips(data):
        outcome = run_file(flipped, OTHER_ANSWER)
        if outcome.question_id == true.question_id:
            outcome = run_file(flipped, {})
        codes.add(outcome.exit_code)
        if outcome.exit_code == 0:
            answer = meaning(flipped)["receipt"]
            assert outcome.question_id == true.question_id, bit
            assert answer["output"]["tokens"] == [draw["token"] for draw in engine["draws"]], bit
            assert answer["text"] == meaning(data)["receipt"]["text"], bit
    assert {0, 10, 11, 13} <= codes <= {0, 10, 11, 13, 14}


@pytest.mark.parametrize("name", FORMS)
def test_every_cut_is_refused(name):
    data = file(name)
    for length in range(len(data)):
        outcome = run_file(data[:length], PINNED)
        # A text file may lose the line break at its end.
        assert outcome.exit_code == (0 if name.endswith("json") and length == len(data) - 1 else 11), length


@pytest.mark.parametrize("name", FORMS)
def test_every_byte_doubled_or_left_out_is_refused_or_says_the_same(name):
    data = file(name)
    said = meaning(data)
    for at in range(len(data)):
        for changed in (data[:at] + data[at : at + 1] + data[at:], data[:at] + data[at + 1 :]):
            outcome = run_file(changed, PINNED)
            assert (outcome.exit_code == 0) == (meaning(changed) == said), f"byte {at}: {outcome}"
