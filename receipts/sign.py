"""Signatures on receipts: Ed25519 over the PAE of the canonical CBOR (step 8 of FORMAT.md).

A signature entry carries its public key, so that it can be checked for
consistency by itself. A key found there is never trusted for that: whoever
changed the receipt can sign it anew with a key of their own.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence

from ktc.errors import SignatureProblem
from receipts.identity import canonical_bytes
from receipts.schema import SIGNATURE, Record

PAYLOAD_TYPE = "application/vnd.kinetic.receipt+cbor"
ALGORITHM = "ed25519"


def sign_record(record: Record, seed: bytes) -> dict[str, str]:
    """A signature entry by the secret key of 32 bytes."""
    from ktc import signature  # costs 70 ms; unsigned receipts don't pay it

    pair = signature.key_pair(seed)
    signed = signature.sign(pair, PAYLOAD_TYPE, canonical_bytes(record))
    entry = {"algorithm": ALGORITHM, "public_key": pair.public, "signature": signed}
    return SIGNATURE.unpack(entry, "signature")


def check_signatures(record: Record, entries: Sequence[dict[str, str]]) -> list[str]:
    """Key ids of the signers, in order; raises SignatureProblem if any signature does not hold."""
    if not entries:
        return []
    from ktc import signature

    payload, signers = canonical_bytes(record), []
    for entry in entries:
        if entry["algorithm"] != ALGORITHM:
            raise SignatureProblem("a signature names an algorithm other than ed25519", name="UNKNOWN_ALGORITHM")
        public = b64decode(entry["public_key"])
        signature.verify(public, PAYLOAD_TYPE, payload, b64decode(entry["signature"]))
        signers.append(signature.key_id(public))
    if len(set(signers)) != len(signers):
        raise SignatureProblem("one key signed twice, and counts once", name="REPEATED_KEY")
    return signers
