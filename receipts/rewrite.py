"""One receipt file from another: with a signature more, or in the other encoding. The receipt itself stays the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ktc.errors import SignatureProblem
from receipts.checks import check_answer
from receipts.encode import Receipt, read_receipt, to_cbor, to_json
from receipts.sign import check_signatures, sign_record

if TYPE_CHECKING:
    from ktc.signature import KeyPair

FORMS = ("json", "cbor")
"""The encodings of a receipt file."""


def form_of(data: bytes) -> str:
    """The encoding of a receipt file that was read."""
    return "cbor" if data[0] >= 0xA0 else "json"  # a CBOR map begins with a0 to bf, JSON text with ASCII


def encoded(receipt: Receipt, form: str) -> bytes:
    """The bytes of a receipt file, checked to be readable. Raises any KtcError."""
    data = to_cbor(receipt) if form == "cbor" else to_json(receipt).encode("utf-8")
    read_receipt(data)  # what could not be read back, for its size say, is not written
    return data


def with_signature(receipt: Receipt, pair: KeyPair) -> Receipt:
    """The same receipt, signed by one key more.

    Raises Malformed if its answer contradicts itself, and SignatureProblem if
    a signature does not hold, the key signed before, or is no pair.
    """
    from ktc.signature import key_id, key_pair

    check_answer(receipt.record)
    if key_pair(pair.seed) != pair:
        raise SignatureProblem("the public key does not belong to the secret key", name="KEY_MISMATCH")
    if key_id(pair.public) in check_signatures(*receipt):
        message = f"the key {key_id(pair.public)} has signed this receipt already, and counts once"
        raise SignatureProblem(message, name="REPEATED_KEY")
    return Receipt(receipt.record, [*receipt.signatures, sign_record(receipt.record, pair.seed)])
