"""What is fuzzed: each function takes bytes, lets only ``KtcError`` be the refusal, and checks what it accepts.

A target returns a word for what happened: the name of the refusal, or "accepted". It raises
AssertionError where something was accepted that does not re-encode to itself, and whatever the
reader let through that it should not have.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from conformance.run_vector import Scripted
from kinetic.api import trace_file
from ktc import canonical, keys, trust
from ktc.errors import KtcError
from receipts.checks import check_answer
from receipts.decimals import bits_to_float, decimal_bits, format_f32
from receipts.encode import read_receipt, to_cbor, to_json
from receipts.identity import question_id, receipt_id
from receipts.sign import check_signatures
from receipts.verify import verify
from receipts.withhold import read_opening, write_opening

CODES = {0, 3, 10, 11, 12, 13, 14}


def fuzz_json(data: bytes) -> str:
    value = canonical.read_json(data)
    again = json.dumps(value, ensure_ascii=False).encode("utf-8")
    assert canonical.read_json(again) == value
    assert canonical.decode(canonical.encode(value)) == value
    return "accepted"


def fuzz_cbor(data: bytes) -> str:
    assert canonical.encode(canonical.decode(data)) == data
    return "accepted"


def fuzz_receipt(data: bytes) -> str:
    receipt = read_receipt(data)
    in_cbor, in_json = to_cbor(receipt), to_json(receipt).encode("utf-8")
    assert data[0] == 0x7B or data[0] in b" \t\r\n" or in_cbor == data
    for again in (read_receipt(in_cbor), read_receipt(in_json)):
        assert to_cbor(again) == in_cbor
        assert receipt_id(again.record) == receipt_id(receipt.record)
        assert question_id(again.record) == question_id(receipt.record)
    verdict = verify(receipt.record, Scripted({}))
    assert verdict.exit_code in CODES and verdict.name and verdict.sentence.isprintable()
    check_signatures(*receipt)
    check_answer(receipt.record)
    return f"accepted {verdict.name}"


def fuzz_trust(data: bytes) -> str:
    found = trust.parse_trust(data)
    for scope in trust.SCOPES:
        for signers in ([], ["00" * 32], sorted(found.revoked)[:2]):
            try:
                standing = trust.judge(found, scope, signers, 0)
            except KtcError as error:
                assert error.exit_code == 12 and found.mode == "enforce"
            else:
                assert standing.is_trusted == standing.sentence.startswith("valid")
                assert not standing.is_trusted, "nobody signed"
    return "accepted"


def fuzz_opening(data: bytes) -> str:
    opening = read_opening(data)
    path = _scratch() / "opening"
    path.unlink(missing_ok=True)
    write_opening(path, opening)
    assert read_opening(path) == opening
    return "accepted"


def fuzz_public_key(data: bytes) -> str:
    path = _scratch() / "k.pub"
    path.write_bytes(data)
    public = keys.read_public_key(path)
    pem = keys._pem(keys.PUBLIC_LABEL, keys.PUBLIC_PREFIX + public)
    assert b"".join(pem.split()) == b"".join(data.split())
    return "accepted"


def fuzz_secret_key(data: bytes) -> str:
    path = _scratch() / "k"
    path.touch(mode=0o600)
    path.write_bytes(data)
    pair = keys.read_secret_key(path)
    pem = keys._pem(keys.SECRET_LABEL, keys.SECRET_PREFIX + pair.seed)
    assert b"".join(pem.split()) == b"".join(data.split())
    return "accepted"


def fuzz_decimal(data: bytes) -> str:
    bits = decimal_bits(data.decode("utf-8", errors="replace"))
    assert decimal_bits(format_f32(bits_to_float(bits))) == bits
    return "accepted"


def fuzz_time(data: bytes) -> str:
    seconds = trust.parse_time(data.decode("utf-8", errors="replace"))
    assert trust.parse_time(trust._date(seconds)) == seconds
    return "accepted"


def fuzz_trace(data: bytes) -> str:
    trace = trace_file.parse(data)
    assert trace_file.encode(trace) == data
    assert trace_file.compare(trace, trace).exit_code == 0
    assert all(op.place.isascii() and op.place.isprintable() for op in trace.ops)
    return "accepted"


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


TARGETS: dict[str, Callable[[bytes], str]] = {
    name.removeprefix("fuzz_"): function for name, function in list(globals().items()) if name.startswith("fuzz_")
}


def run(name: str, data: bytes) -> str:
    """What a target makes of some bytes; raises only what is a finding."""
    try:
        return TARGETS[name](data)
    except KtcError as error:
        assert error.exit_code in CODES and error.name, repr(error)
        assert str(error).isprintable(), f"a message that steers a terminal: {error}"
        return error.name
