"""The signature slot at the end of a bundle (FORMAT.md, Layout of a bundle and Signatures on a bundle).

    manifest digest 32 | length of the signatures u32 | signatures, CBOR | zeros up to 16,384

Signatures are Ed25519 over the PAE of the manifest's bytes. A key that stands
in the slot proves only that slot and manifest belong together.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, TypeAlias

from ktc import canonical, limits
from ktc.errors import LimitExceeded, Malformed, SignatureProblem
from ktc.fields import Base64, ListOf, Table, Text
from ktc.layout import SLOT_BYTES
from ktc.signature import KeyPair

PAYLOAD_TYPE = "application/vnd.kinetic.bundle+cbor"
ALGORITHM = "ed25519"

ROOM_AT = 36
"""Where the signatures begin: after the digest and their length."""

Entry: TypeAlias = dict[str, str]
"""One signature in its plain form: algorithm, public_key and signature, the last two in base64."""

SIGNATURE = Table(
    algorithm=Text(),  # "ed25519"; another is a signature problem, not a broken form
    public_key=Base64(),
    signature=Base64(),
)
SIGNATURES = ListOf(SIGNATURE, limits.MAX_SIGNATURES)


def pack_slot(manifest_digest: bytes, entries: Sequence[Entry]) -> bytes:
    """The 16,384 bytes of the slot. Raises LimitExceeded for more signatures than it may hold."""
    SIGNATURES.check(list(entries), "signatures")
    data = canonical.encode(SIGNATURES.pack(list(entries)))
    used = manifest_digest + len(data).to_bytes(4, "little") + data
    if len(used) > SLOT_BYTES:
        raise Malformed("the signatures do not fit into their slot", name="SLOT")
    return used + bytes(SLOT_BYTES - len(used))


def read_slot(slot: bytes, manifest_digest: bytes) -> list[Entry]:
    """Step B4: the signatures, in their plain form, of a slot that belongs to this manifest."""
    check_owner(slot, manifest_digest)
    entries, end = read_entries(slot)
    rest = slot[end:].lstrip(b"\0")
    if rest:
        raise _bad_slot(f"byte {SLOT_BYTES - len(rest)} is not zero, although the signatures end at byte {end}")
    return entries


def salvage(slot: bytes, manifest_digest: bytes) -> tuple[list[Entry], bool]:
    """The signatures of a slot that was perhaps being written when the machine stopped, and whether it was."""
    check_owner(slot, manifest_digest)
    try:
        return read_slot(slot, manifest_digest), False
    except Malformed:
        pass
    try:
        return read_entries(slot)[0], True
    except Malformed:
        return [], True


def check_owner(slot: bytes, manifest_digest: bytes) -> None:
    """The slot must begin with the digest of the manifest."""
    if slot[:32] != manifest_digest:
        raise Malformed(
            "the manifest has not the digest that the signature slot names: one of the two is damaged or exchanged",
            name="MANIFEST_DIGEST",
        )


def read_entries(slot: bytes) -> tuple[list[Entry], int]:
    """The signatures, and where they end; what stands behind them is not judged."""
    end = ROOM_AT + int.from_bytes(slot[32:ROOM_AT], "little")
    if end > SLOT_BYTES:
        raise _bad_slot(f"bytes 32 to {ROOM_AT} claim signatures of {end - ROOM_AT} bytes, more than there is room for")
    try:
        entries: Any = SIGNATURES.unpack(canonical.decode(slot[ROOM_AT:end]), "signatures")
        SIGNATURES.check(entries, "signatures")
    except (Malformed, LimitExceeded) as error:
        if error.name in ("TOO_MANY_ENTRIES", "TOO_LONG"):
            raise
        raise _bad_slot(f"the signatures cannot be read: {error}") from None
    return entries, end


def _bad_slot(fault: str) -> Malformed:
    return Malformed(f"in the signature slot, {fault}", name="SLOT")


def sign_manifest(manifest_bytes: bytes, pair: KeyPair) -> Entry:
    """A signature entry in its plain form."""
    from ktc import signature

    signed = signature.sign(pair, PAYLOAD_TYPE, manifest_bytes)
    return SIGNATURE.unpack({"algorithm": ALGORITHM, "public_key": pair.public, "signature": signed}, "signature")


def check_signatures(manifest_bytes: bytes, entries: Sequence[Entry]) -> list[str]:
    """Step B8: key ids of the signers, in order; raises SignatureProblem if any signature does not hold."""
    if not entries:
        return []
    from ktc import signature

    signers: list[str] = []
    for number, entry in enumerate(entries, 1):
        if entry["algorithm"] != ALGORITHM:
            raise _bad_entry(number, "names an algorithm other than ed25519", "UNKNOWN_ALGORITHM")
        public = b64decode(entry["public_key"])
        try:
            signature.verify(public, PAYLOAD_TYPE, manifest_bytes, b64decode(entry["signature"]))
        except SignatureProblem as error:
            raise _bad_entry(number, f"does not hold: {error}", error.name) from None
        signers.append(signature.key_id(public))
        if len(set(signers)) != len(signers):
            raise _bad_entry(number, "is by a key that signed already, and counts once", "REPEATED_KEY")
    return signers


def _bad_entry(number: int, fault: str, name: str) -> SignatureProblem:
    return SignatureProblem(f"signature {number} in the signature slot {fault}", name=name)
