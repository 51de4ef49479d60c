"""Signatures on receipts: Ed25519 over the PAE of the canonical CBOR (steps 8 and 9 of FORMAT.md).

A signature entry carries its public key, so that it can be checked for
consistency by itself. A key found there is never trusted for that: whoever
changed the receipt can sign it anew with a key of their own.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ktc.errors import SignatureProblem
from receipts.identity import canonical_bytes
from receipts.schema import SIGNATURE, Record

if TYPE_CHECKING:
    from ktc.trust import Standing, Trust

PAYLOAD_TYPE = "application/vnd.kinetic.receipt+cbor"
ALGORITHM = "ed25519"
SCOPE = "receipt"
"""What a key must be trusted for."""


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


def judge_signatures(record: Record, entries: Sequence[dict[str, str]], trust: Trust | None, at: int) -> Standing:
    """What the signatures are worth to whoever trusts these keys at this time (seconds since 1970).

    Raises SignatureProblem if one does not hold, whoever made it (step 8), and
    where trust is asked for and missing (step 9).
    """
    return judge_signers(check_signatures(record, entries), trust, at)


def judge_signers(signers: Sequence[str], trust: Trust | None, at: int) -> Standing:
    """The second half of ``judge_signatures``: of key ids whose signatures hold."""
    from ktc.trust import judge

    return judge(trust, SCOPE, signers, at)


def read_trusted(key_files: Sequence[str], trust_file: str | None) -> Trust | None:
    """Whom the files named on a command line trust; None if there are none. Raises any KtcError.

    A key goes by the name of its file, ``alice.pub`` by ``alice``.
    """
    from ktc import trust

    if trust_file is not None:
        return trust.read_trust(trust_file)
    if not key_files:
        return None
    from ktc.keys import read_public_key

    keys: dict[str, bytes] = {}
    for path in key_files:
        name = os.path.basename(path).removesuffix(".pub") or path
        keys[path if name in keys else name] = read_public_key(path)
    return trust.pinned(keys, SCOPE)
