"""Receipt files: two encodings of one record, the ids, and what a changed bit does."""

import copy
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktc import canonical
from ktc.errors import KtcError, LimitExceeded, Malformed, SignatureProblem, Unverifiable
from receipts.checks import check_answer
from receipts.encode import (
    Receipt,
    canonical_bytes,
    question_id,
    read_receipt,
    receipt_id,
    to_cbor,
    to_json,
    write_receipt,
)
from receipts.sign import check_signatures, sign_record
from tests.support.sample_receipts import SEED, changed, full_sample, sample

KNOWN_LENGTH = 1327
KNOWN_RECEIPT_ID = "f8f8b17822dd8d999e171a2e5547cfa93a1080c1931fb1cb84c7cb112f90e924"
KNOWN_QUESTION_ID = "36690d3080c94a6b2eafc91814955e4854cf8c9ec065f511e32b3ee70b58f978"

FULL = full_sample()
SIGNED = Receipt(FULL, [sign_record(FULL, SEED)])


def judge(data):
    """Everything an auditor without an engine does; the record if all of it holds."""
    receipt = read_receipt(data)
    check_signatures(receipt.record, receipt.signatures)
    check_answer(receipt.record)
    return receipt


def refused(data):
    with pytest.raises(KtcError) as caught:
        judge(data)
    return caught.value


@pytest.mark.parametrize("receipt", [SIGNED, Receipt(FULL, []), Receipt(sample(), [])])
def test_both_encodings_hold_the_same(receipt):
    text, data = to_json(receipt).encode(), to_cbor(receipt)
    assert judge(text) == receipt
    assert judge(data) == receipt
    assert to_json(judge(data)).encode() == text
    assert to_cbor(judge(text)) == data
    assert json.loads(text) == {"receipt": receipt.record, "signatures": receipt.signatures}


def test_known_ids():
    """Regenerate only with a new version of the format: these bytes are signed."""
    record = sample()
    assert len(canonical_bytes(record)) == KNOWN_LENGTH
    assert receipt_id(record) == KNOWN_RECEIPT_ID
    assert question_id(record) == KNOWN_QUESTION_ID


def test_json_is_for_reading():
    tokens = list(range(1000, 1400))
    record = sample(output=tokens, stop_reason="length", max_tokens=400, end_tokens=[])
    text = to_json(Receipt(record, []))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert len(lines) < 150
    assert list(json.loads(text)["receipt"]) == list(record)
    assert '"tokens": [3, 1, 4]' in text


def test_json_order_does_not_depend_on_the_dicts():
    backwards = dict(reversed(FULL.items()))
    backwards["sampling"] = dict(reversed(FULL["sampling"].items()))
    assert to_json(Receipt(backwards, [])) == to_json(Receipt(FULL, []))


def test_json_keeps_characters_but_not_those_that_steer_a_terminal():
    record = sample(text="naïve 日本 \x1b[31m \x9b31m \u202e \u2028", stop_reason="interrupt", output=[1])
    text = to_json(Receipt(record, []))
    assert "naïve 日本" in text
    assert not set("\x1b\x9b\u202e\u2028") & set(text)
    assert read_receipt(text.encode()).record == record


@pytest.mark.parametrize("path", ["sampling.temperature", "sampling.top_p", "overrides.rope_freq_base"])
def test_spelling_of_decimals_does_not_matter(path):
    record = changed(FULL, path, "0.50")
    assert canonical_bytes(record) == canonical_bytes(changed(FULL, path, "0.5"))
    assert canonical_bytes(record) == canonical_bytes(changed(FULL, path, "0.500000000000000000000000000001"))
    assert canonical_bytes(record) != canonical_bytes(FULL)


# What is in the question

MUTANTS = {
    "profile": "kinetic-1-draft.2",
    "model.architecture": "gemma3",
    "model.files.0.name": "renamed.gguf",
    "model.files.0.size": 123_457,
    "model.files.0.blake3": "ac" * 32,
    "model.files.0.sha256": "ce" * 32,
    "bundle": "",
    "adapters.0.name": "renamed.gguf",
    "adapters.0.size": 1,
    "adapters.0.blake3": "00" * 32,
    "adapters.0.sha256": "00" * 32,
    "adapters.0.scale": "1",
    "overrides.context": 4096,
    "overrides.cache_type_k": "f32",
    "overrides.cache_type_v": "q8_0",
    "overrides.rope_scaling": "linear",
    "overrides.rope_scale": "2",
    "overrides.rope_freq_base": "10001",
    "overrides.rope_freq_scale": "2",
    "overrides.yarn_orig_ctx": 1,
    "overrides.yarn_ext_factor": "",
    "overrides.yarn_attn_factor": "1",
    "overrides.yarn_beta_fast": "32",
    "overrides.yarn_beta_slow": "1",
    "prompt.tokens": [3, 1, 5],
    "prompt.digest": "00" * 32,
    "prompt.commitment": "00" * 32,
    "clock": "2026-03-14T15:09:27",
    "grammar": "",
    "sampling.seed": "8",
    "sampling.rng": "philox",
    "sampling.samplers": ["temperature"],
    "sampling.temperature": "0.9",
    "sampling.top_k": 1,
    "sampling.top_p": "0.9",
    "sampling.min_p": "0.1",
    "sampling.repeat_last_n": -1,
    "sampling.repeat_penalty": "1.1",
    "sampling.frequency_penalty": "-1",
    "sampling.presence_penalty": "1",
    "sampling.logit_bias": [],
    "sampling.logit_bias.0.token": 3,
    "sampling.logit_bias.0.bias": "1.6",
    "sampling.logit_bias.1.bias": "-1000",
    "sampling.typ_p": "0.9",
    "sampling.top_n_sigma": "1",
    "sampling.xtc_probability": "0.5",
    "sampling.xtc_threshold": "0.2",
    "sampling.dynatemp_range": "0.5",
    "sampling.dynatemp_exponent": "2",
    "sampling.dry_multiplier": "0.8",
    "sampling.dry_base": "2",
    "sampling.dry_allowed_length": 3,
    "sampling.dry_penalty_last_n": 0,
    "sampling.dry_sequence_breakers": [],
    "sampling.mirostat": 1,
    "sampling.mirostat_tau": "6",
    "sampling.mirostat_eta": "0.2",
    "completion_index": 1,
    "max_tokens": 4,
    "stop.reason": "interrupt",
    "stop.strings": [],
    "stop.end_tokens": [0, 9],
    "output.tokens": [1, 2, 4, 0],
    "output.digest": "00" * 32,
    "text": " red",
    "claims.engine_version": "0.1.1",
    "claims.engine_id": "x",
    "claims.device_class": "cuda",
    "claims.device_name": "x",
    "claims.time": "",
    "challenge": "00" * 16,
    "logit_commit": [],
    "commitments.0.name": "x",
    "commitments.0.digest": "00" * 32,
    "parent.root": "00" * 32,
    "parent.count": 1,
    "parent.index": 1,
    "parent.path": ["00" * 32],
    "certificate": "",
    "ext.note": "changed",
    "ext": {},
    "crit": ["note"],
    "type": "x",
    "version": 2,
}

NOT_THE_QUESTION = {
    *("model.files.0.name", "adapters.0.name", "bundle", "clock", "certificate", "stop.reason", "text", "logit_commit"),
    *(path for path in MUTANTS if path.startswith(("claims.", "output.", "commitments.", "ext"))),
}


def test_the_mutants_cover_every_field():
    from tests.unit.test_receipt_schema import leaves

    tops = {path.removesuffix(".0").removesuffix(".1") for path in MUTANTS}
    assert set(leaves(FULL)) - {"sampling.logit_bias.1.token"} <= tops | set(MUTANTS)


@pytest.mark.parametrize("path", MUTANTS)
def test_each_field_changed_alone_is_refused_or_changes_what_is_signed(path):
    record = changed(FULL, path, MUTANTS[path])
    forged = json.dumps({"receipt": record, "signatures": SIGNED.signatures}).encode()
    error = refused(forged)
    try:
        unsigned = read_receipt(json.dumps({"receipt": record, "signatures": []}).encode())
    except KtcError as form:  # refused with or without a signature
        assert type(form) is type(error)
        return
    assert isinstance(error, SignatureProblem)
    assert canonical_bytes(unsigned.record) != canonical_bytes(FULL)
    assert (question_id(unsigned.record) == question_id(FULL)) == (path in NOT_THE_QUESTION)


def test_a_bundle_and_its_file_ask_the_same():
    assert question_id(sample(bundle="00" * 32)) == question_id(sample())
    assert receipt_id(sample(bundle="00" * 32)) != receipt_id(sample())


def test_signatures_are_no_part_of_the_receipt():
    assert receipt_id(read_receipt(to_json(SIGNED).encode()).record) == receipt_id(FULL)


# Bits

JSON, CBOR = to_json(SIGNED).encode(), to_cbor(SIGNED)


@pytest.mark.parametrize("data", [JSON, CBOR], ids=["json", "cbor"])
def test_one_flipped_bit_is_refused_unless_it_changes_nothing(data):
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position * 5 % 8
        try:
            receipt = judge(bytes(flipped))
        except KtcError:
            continue
        assert to_cbor(receipt) == CBOR, f"byte {position} is covered by nothing"


@pytest.mark.parametrize("data", [JSON, CBOR], ids=["json", "cbor"])
def test_cut_and_continued_files_are_refused(data):
    for length in (*range(0, len(data) - 2, 37), len(data) - 2):
        assert refused(data[:length]).exit_code == 11
    assert refused(data + b"{}").exit_code == 11
    assert refused(data + data).exit_code == 11


def repacked(change):
    """The CBOR file with something done to its decoded content."""
    content = canonical.decode(CBOR)
    change(content)
    return canonical.encode(content)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda file: file["receipt"].update(text=1), "WRONG_TYPE"),
        (lambda file: file["receipt"].update(bundle="00" * 32), "WRONG_TYPE"),
        (lambda file: file["receipt"].update(bundle=b""), "NOT_CANONICAL"),
        (lambda file: file["receipt"]["model"].update(files={}), "WRONG_TYPE"),
        (lambda file: file["receipt"]["sampling"].update(temperature="0.8"), "WRONG_TYPE"),
        (lambda file: file["receipt"]["sampling"].update(min_p=0x80000000), "NOT_CANONICAL"),  # -0
        (lambda file: file["receipt"]["sampling"].update(min_p=0x7FC00000), "BAD_DECIMAL"),  # NaN
        (lambda file: file["receipt"]["sampling"].update(min_p=0x7F800000), "BAD_DECIMAL"),  # infinity
        (lambda file: file["receipt"]["sampling"].update(min_p=2**32), "OUT_OF_RANGE"),
        (lambda file: file["receipt"]["sampling"].update(min_p=-1), "OUT_OF_RANGE"),
        (lambda file: file["receipt"].update(verified=True), "UNKNOWN_FIELD"),
        (lambda file: file["receipt"].update(version=2), "VERSION"),
        (lambda file: file.update(verdict="IDENTICAL"), "UNKNOWN_FIELD"),
        (lambda file: file.pop("signatures"), "MISSING_FIELD"),
        (lambda file: file["signatures"][0].update(keyid="x"), "UNKNOWN_FIELD"),
        (lambda file: file["signatures"][0].update(signature="x"), "WRONG_TYPE"),
    ],
)
def test_cbor_of_the_wrong_shape(change, name):
    assert refused(repacked(change)).name == name


# Signatures in the file


def with_signatures(signatures):
    return json.dumps({"receipt": FULL, "signatures": signatures}).encode()


def entry(**changes):
    return SIGNED.signatures[0] | changes


@pytest.mark.parametrize(
    ("signatures", "kind", "name"),
    [
        (None, Malformed, "WRONG_TYPE"),
        ({}, Malformed, "WRONG_TYPE"),
        ([None], Malformed, "WRONG_TYPE"),
        ([{}], Malformed, "MISSING_FIELD"),
        ([entry()] * 50_000, LimitExceeded, "TOO_MANY_ENTRIES"),
        ([entry()] * 2, SignatureProblem, "REPEATED_KEY"),
        ([entry(algorithm="none")], SignatureProblem, "UNKNOWN_ALGORITHM"),
        ([entry(algorithm="hmac-sha256")], SignatureProblem, "UNKNOWN_ALGORITHM"),
        ([entry(public_key="")], SignatureProblem, "BAD_KEY"),
        ([entry(public_key="MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A")], SignatureProblem, "BAD_KEY"),
        ([entry(signature="")], SignatureProblem, "BAD_SIGNATURE"),
        ([entry(public_key=entry()["public_key"].rstrip("="))], Malformed, "BAD_BASE64"),
        ([entry(public_key=entry()["public_key"][:-2] + "J=")], Malformed, "BAD_BASE64"),
        ([entry(signature=entry()["signature"] + "\n")], Malformed, "BAD_BASE64"),
        ([entry(signature="-_" + entry()["signature"][2:])], Malformed, "BAD_BASE64"),
        ([entry(signature="A" * 4000)], LimitExceeded, "TOO_LONG"),
        ([sign_record(sample(), SEED)], SignatureProblem, "BAD_SIGNATURE"),
    ],
)
def test_signatures_that_do_not_hold(signatures, kind, name):
    error = refused(with_signatures(signatures))
    assert (type(error), error.name) == (kind, name)


def test_two_signers_hold():
    signatures = [sign_record(FULL, SEED), sign_record(FULL, bytes(32))]
    assert len(set(check_signatures(FULL, signatures))) == 2
    assert check_signatures(FULL, []) == []


def test_a_field_outside_the_signed_object_is_refused():
    moved = {"receipt": FULL, "signatures": SIGNED.signatures, "text": FULL["text"]}
    assert refused(json.dumps(moved).encode()).name == "UNKNOWN_FIELD"


# Files


def test_written_files_read_back(tmp_path):
    for form, first in (("json", b"{"), ("cbor", b"\xa2")):
        path = tmp_path / "answer"  # the name says nothing about the encoding
        write_receipt(path, FULL, SIGNED.signatures, form=form)
        assert path.read_bytes().startswith(first)
        assert read_receipt(path) == SIGNED
    assert os.listdir(tmp_path) == ["answer"]


def test_nothing_is_written_unless_it_holds(tmp_path):
    path = tmp_path / "answer.json"
    path.write_text("before")
    for record in (changed(FULL, "text", 1), changed(FULL, "output.digest", "00" * 32), changed(FULL, "version", 2)):
        with pytest.raises(KtcError):
            write_receipt(path, record)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["answer.json"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(KtcError) as caught:
        write_receipt(tmp_path / "answer.json", FULL)
    assert caught.value.exit_code == 3
    assert os.listdir(tmp_path) == []


def test_unreadable_and_huge_files(tmp_path):
    with pytest.raises(KtcError) as caught:
        read_receipt(tmp_path / "absent.json")
    assert caught.value.exit_code == 3
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(LimitExceeded) as limit:
        read_receipt(tmp_path / "huge.json")
    assert limit.value.name == "FILE_TOO_LARGE"


def test_a_newer_version_is_not_called_malformed():
    newer = copy.deepcopy(FULL) | {"version": 2, "field_of_the_future": []}
    with pytest.raises(Unverifiable):
        read_receipt(json.dumps({"receipt": newer, "signatures": []}).encode())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_survives_both_encodings(text):
    receipt = Receipt(sample(text=text), [])
    assert read_receipt(to_json(receipt).encode()) == receipt
    assert read_receipt(to_cbor(receipt)) == receipt


def test_a_long_answer_can_be_written_and_read(tmp_path):
    tokens = [999_999] * 131_072
    record = sample(output=tokens, stop_reason="length", max_tokens=len(tokens), text="")
    write_receipt(tmp_path / "long.json", record)
    assert len(read_receipt(tmp_path / "long.json").record["output"]["tokens"]) == len(tokens)
