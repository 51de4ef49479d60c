"""Receipts in the envelopes of others: DSSE, in-toto, COSE_Sign1, and a SLSA verification summary.

Only the DSSE envelope can hold the receipt's own signatures, because they are
made over DSSE's encoding; the others are signed anew. Each function takes a
receipt whose form, signatures and answer were checked, and returns the bytes
of a file. Sources: DSSE 1.0; in-toto Attestation Framework v1 (Statement,
ResourceDescriptor); RFC 9052 (COSE), RFC 9597 (CWT claims in headers), RFC
9943 (SCITT); SLSA 1.1, Verification Summary Attestation v1.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from receipts.encode import Receipt
from receipts.errors import DIFFERS, IDENTICAL, Unverifiable
from receipts.identity import canonical_bytes, question_id, receipt_id
from receipts.schema import RECEIPT, Record
from receipts.sign import PAYLOAD_TYPE

if TYPE_CHECKING:
    from ktc.signature import KeyPair
    from receipts.verify import Verdict

NAMESPACE = "pkg:pypi/kinetic-engine"
"""Beginning of every URI of this project's own: a package URL, which names the program and claims no web site."""

PREDICATE_TYPE = f"{NAMESPACE}#receipt/v1"
POLICY = f"{NAMESPACE}#rerun/v1"
"""What a verification summary says was checked: all steps of FORMAT.md."""

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
STATEMENT_PAYLOAD_TYPE = "application/vnd.in-toto+json"
SUMMARY_TYPE = "https://slsa.dev/verification_summary/v1"
SUBJECT = "answer.txt"

RERUN_LEVEL, PREFIX_LEVEL, FAILED = "KINETIC_RERUN_IDENTICAL", "KINETIC_RERUN_IDENTICAL_PREFIX", "FAILED"

_COSE_SIGN1, _EDDSA = 18, -8
_ALG, _CONTENT_TYPE, _KID, _CWT_CLAIMS = 1, 3, 4, 15
_ISS, _SUB = 1, 2
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519_KEY = b"\xed\x01"
"""Multicodec's prefix of an Ed25519 public key."""


class Verification(NamedTuple):
    """A verification that was really made, and what it was held against."""

    verdict: Verdict
    file_sha256: str
    """Of the receipt's file, byte for byte."""
    time: str
    """When it was made, UTC, as in 2026-03-14T15:09:26Z."""
    program: str
    """Version of the engine that reran it."""
    pinned: Sequence[str] = ()
    """Ids of the keys that had to sign, if any."""
    trust_sha256: str = ""
    """Of the trust file, or ""."""


def receipt_uri(record: Record) -> str:
    """A name for one receipt."""
    return f"{NAMESPACE}#receipt/{receipt_id(record)}"


def question_uri(record: Record) -> str:
    """A name for what was asked, the same for all answers to it."""
    return f"{NAMESPACE}#question/{question_id(record)}"


# DSSE


def dsse(receipt: Receipt) -> bytes:
    """A DSSE envelope of the canonical CBOR, with the receipt's own signatures."""
    from ktc.signature import key_id

    signatures = [
        {"keyid": key_id(b64decode(entry["public_key"])), "sig": entry["signature"]} for entry in receipt.signatures
    ]
    return _envelope(PAYLOAD_TYPE, canonical_bytes(receipt.record), signatures)


def _envelope(payload_type: str, payload: bytes, signatures: list[dict[str, str]]) -> bytes:
    table = {"payload": _base64(payload), "payloadType": payload_type, "signatures": signatures}
    return (json.dumps(table, indent=2) + "\n").encode("ascii")


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


# in-toto


def intoto(receipt: Receipt, pair: KeyPair) -> bytes:
    """An in-toto Statement that holds the whole receipt, in a DSSE envelope signed by ``pair``."""
    record = receipt.record
    predicate = {
        "receiptId": receipt_id(record),
        "questionId": question_id(record),
        "resolvedDependencies": [_dependency(file) for file in [*record["model"]["files"], *record["adapters"]]],
        "receipt": RECEIPT.unpack(RECEIPT.pack(record), "receipt"),  # one receipt, one spelling
        "signatures": receipt.signatures,
    }
    return _signed_statement(record, PREDICATE_TYPE, predicate, pair)


def _dependency(file: Mapping[str, Any]) -> dict[str, Any]:
    """A model file or adapter as a ResourceDescriptor."""
    return {"name": file["name"], "digest": {"sha256": file["sha256"], "blake3": file["blake3"]}}


def _signed_statement(record: Record, predicate_type: str, predicate: dict[str, Any], pair: KeyPair) -> bytes:
    from ktc import signature

    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": SUBJECT, "digest": {"sha256": _sha256(record["text"].encode("utf-8"))}}],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    payload = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    signed = signature.sign(pair, STATEMENT_PAYLOAD_TYPE, payload)
    entry = {"keyid": signature.key_id(pair.public), "sig": _base64(signed)}
    return _envelope(STATEMENT_PAYLOAD_TYPE, payload, [entry])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# COSE


def cose(record: Record, pair: KeyPair, issuer: str = "") -> bytes:
    """A COSE_Sign1 of the canonical CBOR, as SCITT transparency services register them.

    ``issuer`` is who signs, as a URI; without one it is the key itself, as a
    ``did:key``. Everything stands in the protected header.
    """
    import cbor2

    from ktc import signature

    header = {
        _ALG: _EDDSA,
        _CONTENT_TYPE: PAYLOAD_TYPE,
        _KID: bytes.fromhex(signature.key_id(pair.public)),
        _CWT_CLAIMS: {_ISS: issuer or did_key(pair.public), _SUB: receipt_uri(record)},
    }
    # Labels below 24 take one byte each, so cbor2's order of keys is RFC 8949's.
    protected, payload = cbor2.dumps(header, canonical=True), canonical_bytes(record)
    to_be_signed = cbor2.dumps(["Signature1", protected, b"", payload], canonical=True)  # RFC 9052 section 4.4
    signed = signature.sign_bytes(pair, to_be_signed)
    return cbor2.dumps(cbor2.CBORTag(_COSE_SIGN1, [protected, {}, payload, signed]), canonical=True)


def did_key(public: bytes) -> str:
    """An Ed25519 public key as a URI (the did:key method): base58btc of multicodec's prefix and the key."""
    number, digits = int.from_bytes(_ED25519_KEY + public, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return f"did:key:z{digits}"


# SLSA verification summary


def summary(record: Record, made: Verification, pair: KeyPair) -> bytes:
    """A SLSA Verification Summary of a receipt that was rerun, signed by the verifier's ``pair``.

    Raises Unverifiable unless the rerun gave an answer: what could not be
    judged neither passed nor failed.
    """
    verdict = made.verdict
    if verdict.exit_code not in (IDENTICAL, DIFFERS):
        raise Unverifiable(f"there is no verdict to sum up: {verdict.sentence}", name=verdict.name)
    passed = verdict.exit_code == IDENTICAL
    level = PREFIX_LEVEL if verdict.is_prefix else RERUN_LEVEL
    predicate = {
        "verifier": {"id": NAMESPACE, "version": {"kinetic": made.program}},
        "timeVerified": made.time,
        "resourceUri": question_uri(record),
        "policy": _policy(made),
        "inputAttestations": [{"uri": receipt_uri(record), "digest": {"sha256": made.file_sha256}}],
        "verificationResult": "PASSED" if passed else FAILED,
        "verifiedLevels": [level if passed else FAILED],
        f"{NAMESPACE}#verdict/v1": _verdict(record, verdict),
    }
    return _signed_statement(record, SUMMARY_TYPE, predicate, pair)


def _policy(made: Verification) -> dict[str, Any]:
    """As a ResourceDescriptor: the rerun, and whom the receipt had to be signed by."""
    policy: dict[str, Any] = {"uri": POLICY}
    if made.trust_sha256:
        policy["digest"] = {"sha256": made.trust_sha256}
    if made.pinned:
        policy["annotations"] = {"pinnedKeys": list(made.pinned)}
    return policy


def _verdict(record: Record, verdict: Verdict) -> dict[str, Any]:
    """The verdict in this project's own words, under a field name that is a URI as extensions must be."""
    return {
        "name": verdict.name,
        "sentence": verdict.sentence,
        "profile": record["profile"],
        "method": verdict.method,
        "signature": verdict.signature,
        "tokensChecked": verdict.checked,
        "isPrefix": verdict.is_prefix,
    }
