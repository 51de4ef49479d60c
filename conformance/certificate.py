"""Device certificates: which cases held on a machine, with what digests, under a signature.

    {"certificate": {...}, "signatures": [{"algorithm": "ed25519", "public_key": ..., "signature": ...}]}

The file is JSON with sorted keys. What is signed is the deterministic CBOR of the certificate (``ktc.canonical``) in
DSSE's encoding, as of receipts, under a type of its own, so that no signature on one is one on the other. It says what
a run of the suite found; that the machine is the one it names is a claim of whoever signed.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conformance.suite import FAILED, PASSED, SKIPPED, Result, counts
from ktc.canonical import encode, read_json
from ktc.digest import digest
from ktc.errors import Malformed, SignatureProblem, Unverifiable
from ktc.fields import Base64, Enum, Field, Hex, Int, ListOf, Optional, Table, Text, TextMap
from receipts.report.shown import whole

TYPE, VERSION = "kinetic-certificate", 1
PAYLOAD_TYPE = "application/vnd.kinetic.certificate+cbor"
ALGORITHM = "ed25519"
SCOPE = "certificate"
"""What a key must be trusted for."""

DOMAIN = b"kinetic certificate v1\0"
MOST_CASES, MOST_SIGNATURES = 20_000, 16

CASE = Table(id=Text(512), outcome=Enum(PASSED, FAILED, SKIPPED), digest=Optional(Hex(32)), text=Text(4096))
FORM = Table(
    type=Enum(TYPE),
    version=Int(VERSION, VERSION),
    time=Text(32, pattern=r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    program=Text(64),
    profile=Text(64),
    engine_id=Text(256),
    device_class=Text(64),
    device_name=Text(256),
    level=Enum("quick", "normal", "full"),
    only=ListOf(Text(512), MOST_CASES, key=str),  # of --only; empty: all cases of the level were tried
    machine=TextMap(Text(64), Text(1024), 64),
    models=ListOf(Table(name=Text(512), blake3=Hex(32)), 256),
    passed=Int(0),
    failed=Int(0),
    skipped=Int(0),
    cases=ListOf(CASE, MOST_CASES, key=lambda case: case["id"]),
)
SIGNATURE = Table(algorithm=Text(64), public_key=Base64(), signature=Base64())
ENVELOPE = Table(certificate=FORM, signatures=ListOf(SIGNATURE, MOST_SIGNATURES))

Certificate = dict[str, Any]


class Checked(NamedTuple):
    """A certificate whose form and signatures hold."""

    certificate: Certificate
    signers: list[str]
    """Key ids, hex."""


def build(about: Mapping[str, Any], results: Sequence[Result]) -> Certificate:
    """An unsigned certificate. ``about`` gives the fields that are not about cases. Raises Malformed."""
    cases = [
        {"id": result.id, "outcome": result.outcome, "digest": result.digest, "text": whole(result.text[:1000])}
        for result in sorted(results, key=lambda result: result.id)
    ]
    made = {"type": TYPE, "version": VERSION, **about, **counts(results), "cases": cases}
    FORM.check(made, "certificate")
    return made


def to_bytes(certificate: Certificate, seed: bytes | None = None) -> bytes:
    """The file, signed by the secret key ``seed`` of 32 bytes if there is one."""
    entries = [] if seed is None else [_sign(certificate, seed)]
    envelope = {"certificate": certificate, "signatures": entries}
    return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"


def signed_bytes(certificate: Certificate) -> bytes:
    """What signatures are over, without DSSE's frame."""
    packed: Any = _pack(FORM, certificate)
    return encode(packed)


def certificate_id(certificate: Certificate) -> str:
    """Hex name of a certificate, for a receipt's field ``certificate``; signatures are no part of it."""
    return digest(DOMAIN, signed_bytes(certificate)).hex()


def check(data: bytes) -> Checked:
    """Read a certificate. Raises Malformed, LimitExceeded, and SignatureProblem if a signature does not hold."""
    from ktc import signature

    envelope: Any = read_json(data)
    ENVELOPE.check(envelope, "the file")
    certificate = envelope["certificate"]
    _require_counts(certificate)
    payload, signers = signed_bytes(certificate), []
    for entry in envelope["signatures"]:
        if entry["algorithm"] != ALGORITHM:
            raise SignatureProblem("a signature names an algorithm other than ed25519", name="UNKNOWN_ALGORITHM")
        public = b64decode(entry["public_key"])
        signature.verify(public, PAYLOAD_TYPE, payload, b64decode(entry["signature"]))
        signers.append(signature.key_id(public))
    if len(set(signers)) != len(signers):
        raise SignatureProblem("one key signed twice, and counts once", name="REPEATED_KEY")
    return Checked(certificate, signers)


def cited(data: bytes, engine_id: str) -> str:
    """The name under which an answer of this engine may cite a certificate.

    Raises what ``check`` raises, and Unverifiable for one of another engine, or one whose cases did not hold.
    """
    certificate = check(data).certificate
    if certificate["engine_id"] != engine_id:
        message = "the certificate is of another engine than the one that answers: certify this one with --certify"
        raise Unverifiable(message, name="OTHER_ENGINE")
    if certificate["failed"] or not certificate["passed"]:
        raise Unverifiable("the certificate says that cases failed, or that none passed", name="NOT_PASSED")
    if certificate["only"]:
        raise Unverifiable("the certificate is about some cases alone: certify without --only", name="PART")
    return certificate_id(certificate)


def _require_counts(certificate: Certificate) -> None:
    """What it says of its cases is what they say."""
    for outcome in (PASSED, FAILED, SKIPPED):
        found = sum(case["outcome"] == outcome for case in certificate["cases"])
        if certificate[outcome] != found:
            raise Malformed(f"certificate.{outcome} is {certificate[outcome]}, and {found} cases are", name="COUNTS")


def _sign(certificate: Certificate, seed: bytes) -> dict[str, Any]:
    from ktc import signature

    pair = signature.key_pair(seed)
    signed = signature.sign(pair, PAYLOAD_TYPE, signed_bytes(certificate))
    return SIGNATURE.unpack({"algorithm": ALGORITHM, "public_key": pair.public, "signature": signed}, "signature")


def _pack(form: Field, value: Any) -> Any:
    return form.pack(value)
