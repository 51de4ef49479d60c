"""Step 8: signatures that do not hold, or hold for something else."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

from blake3 import blake3
from nacl import bindings

from ktc import signature
from receipts.identity import canonical_bytes, receipt_id
from receipts.sign import PAYLOAD_TYPE, sign_record
from tools.receipt_vectors.build import (
    BASES,
    OK,
    OTHER_SEED,
    SEED,
    Case,
    Expect,
    changed,
    edit,
    forge,
    forged,
    packed,
    plain,
    record,
    signed,
)

BAD: Expect = (12, "BAD_SIGNATURE", 8)
KEY: Expect = (12, "BAD_KEY", 8)
ALGORITHM: Expect = (12, "UNKNOWN_ALGORITHM", 8)
BASE64: Expect = (11, "BAD_BASE64", 8)
BUNDLE_TYPE = "application/vnd.kinetic.bundle+cbor"
PUBLIC, OTHER_PUBLIC = (signature.key_pair(seed).public for seed in (SEED, OTHER_SEED))


def cases() -> Iterator[Case]:
    yield from _arrays()
    yield from _algorithms()
    yield from _messages()
    yield from _points()
    yield from _base64()
    yield from _in_cbor()


def entry(public: bytes = PUBLIC, signed_with: bytes = b"", algorithm: str = "ed25519") -> dict[str, str]:
    return {"algorithm": algorithm, "public_key": _text(public), "signature": _text(signed_with or _good())}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _good() -> bytes:
    return base64.b64decode(sign_record(record(), SEED)["signature"])


def _raw(message: bytes, seed: bytes = SEED) -> bytes:
    """A signature on any bytes, without the encoding around them."""
    _, secret = bindings.crypto_sign_seed_keypair(seed)
    return bindings.crypto_sign(message, secret)[:64]


def _arrays() -> Iterator[Case]:
    base, good = record(), entry()
    null: Expect = (11, "WRONG_TYPE", 2)
    form: Expect = (11, "WRONG_TYPE", 8)
    unsigned = {"signature": "unsigned"}
    message = signature.pae(PAYLOAD_TYPE, canonical_bytes(base)).hex()
    what = "The signed base: the bytes that are signed, and who signed is not known."
    bytes_signed = {"signature": "unknown", "signed_bytes": message}
    yield Case("signed", [99, 111], what, BASES["signed.json"], OK, more=bytes_signed)
    yield Case("signatures-empty", [100], "An unsigned receipt.", plain(base), OK, more=unsigned)
    entries: Any
    for name, what, entries, expect in [
        ("null", "Null in place of the signatures.", None, null),
        ("object", "An object in place of the array.", {}, form),
        ("entry-not-in-array", "One entry, in no array.", good, form),
        ("text", "A text in place of the array.", "ed25519", form),
        ("entry-null", "Null in place of an entry.", [None], null),
        ("entry-text", "A text in place of an entry.", [good["signature"]], form),
        ("entry-empty", "An entry without fields.", [{}], (11, "MISSING_FIELD", 8)),
        (
            "entry-no-algorithm",
            "An entry that names no algorithm.",
            [_less(good, "algorithm")],
            (11, "MISSING_FIELD", 8),
        ),
        ("entry-verified", "A verdict inside an entry.", [good | {"verified": True}], (11, "UNKNOWN_FIELD", 8)),
        ("entry-key-id", "A key id beside the key.", [good | {"key_id": "00" * 32}], (11, "UNKNOWN_FIELD", 8)),
        (
            "one-key-twice",
            "One key signed twice: it counts once, and may stand there once.",
            [good, good],
            (12, "REPEATED_KEY", 8),
        ),
        ("second-broken", "The second of two does not hold.", [good, entry(OTHER_PUBLIC)], BAD),
    ]:
        attack = {"entry-verified": 91}.get(name, 100)
        yield Case(f"signatures-{name}", [attack], what, plain(base, entries), expect)
    two = {"signature": "unknown"}
    yield Case("signatures-two", [100], "Two keys signed.", signed(base, SEED, OTHER_SEED), OK, more=two)


def _less(old: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in old.items() if key != name}


def _algorithms() -> Iterator[Case]:
    base, payload = record(), canonical_bytes(record())
    mac = hmac.new(PUBLIC, signature.pae(PAYLOAD_TYPE, payload), hashlib.sha256).digest()
    pem = b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA" + base64.b64encode(PUBLIC) + b"\n-----END PUBLIC KEY-----\n"
    for name, algorithm in [
        ("none", "none"),
        ("empty", ""),
        ("capitals", "Ed25519"),
        ("space", "ed25519 "),
        ("prehashed", "ed25519ph"),
        ("ed448", "ed448"),
        ("rsa", "rsa-pss-sha256"),
        ("ecdsa", "ecdsa-p256"),
        ("eddsa", "EdDSA"),
        ("look-alike", "ed255l9"),
    ]:
        what = f"The algorithm is named {algorithm!r}."
        yield Case(f"algorithm-{name}", [101], what, plain(base, [entry(algorithm=algorithm)]), ALGORITHM)
    what = "A MAC with the public key as its secret, by that name."
    yield Case("algorithm-hmac", [101], what, plain(base, [entry(PUBLIC, mac, "hmac-sha256")]), ALGORITHM)
    what = "A MAC with the public key as its secret, said to be ed25519."
    yield Case("mac-as-signature", [101], what, plain(base, [entry(PUBLIC, mac)]), BAD)
    yield Case("key-pem", [101], "A PEM file in place of a key.", plain(base, [entry(pem)]), KEY)
    der = bytes.fromhex("302a300506032b6570032100") + PUBLIC
    yield Case("key-der", [101], "A key with its DER wrapping.", plain(base, [entry(der)]), KEY)
    rsa = bytes.fromhex("3082010a0282010100") + b"\xc3" * 256 + bytes.fromhex("0203010001")
    yield Case("key-rsa", [101], "A key of RSA's form.", plain(base, [entry(rsa, b"\1" * 256)]), KEY)
    point = b"\4" + bytes(range(64))
    yield Case("key-ecdsa", [101], "An uncompressed point of another curve.", plain(base, [entry(point)]), KEY)
    empty = plain(base, [entry() | {"signature": ""}])
    yield Case("signature-empty", [101], "An empty signature.", empty, BAD)
    most = plain(base, [entry() | {"public_key": _text(bytes(1024))}])
    yield Case("key-long", [100], "A key of 1,024 bytes, the most that is looked at.", most, KEY)
    long = plain(base, [entry() | {"public_key": _text(bytes(1025))}])
    yield Case("key-too-long", [100], "A key of 1,025 bytes.", long, (14, "TOO_LONG", 8))
    longer = plain(base, [entry() | {"public_key": _text(bytes(1200))}])
    yield Case("key-longer", [100], "A key far above the limit.", longer, (14, "TOO_LONG", 8))


def _messages() -> Iterator[Case]:
    """Signatures that hold, but on other bytes than a receipt's."""
    base, payload = record(), canonical_bytes(record())
    for name, attack, what, message in [
        ("bundle", 102, "A signature on the same bytes as a bundle's.", signature.pae(BUNDLE_TYPE, payload)),
        ("other-type", 102, "Another payload type.", signature.pae("application/vnd.kinetic.receipt+json", payload)),
        ("type-parameters", 102, "The payload type with a parameter.", signature.pae(PAYLOAD_TYPE + ";v=1", payload)),
        ("no-type", 102, "An empty payload type.", signature.pae("", payload)),
        ("bare", 111, "The canonical bytes alone.", payload),
        ("id", 111, "The receipt's id as bytes.", bytes.fromhex(receipt_id(base))),
        ("id-hex", 111, "The receipt's id as text.", receipt_id(base).encode("ascii")),
        (
            "payload-hex",
            111,
            "The canonical bytes as text.",
            signature.pae(PAYLOAD_TYPE, payload.hex().encode("ascii")),
        ),
        ("sha256", 111, "The SHA-256 of the canonical bytes.", hashlib.sha256(payload).digest()),
        ("prefix-hash", 111, "A SHA-256 of a domain and the bytes.", hashlib.sha256(b"kinetic" + payload).digest()),
        ("no-domain", 111, "The BLAKE3 of the canonical bytes without the domain.", blake3(payload).digest()),
        ("json", 111, "The JSON text.", signature.pae(PAYLOAD_TYPE, BASES["plain.json"])),
        ("file", 111, "The CBOR of the whole file.", signature.pae(PAYLOAD_TYPE, BASES["plain.cbor"])),
        ("length", 111, "A length that is one too high.", _pae(PAYLOAD_TYPE, len(payload) + 1, payload)),
        ("dsse-v0", 111, "An older encoding around the bytes.", _pae(PAYLOAD_TYPE, len(payload), payload, b"DSSEv0")),
        (
            "other-receipt",
            102,
            "A signature on another receipt.",
            _message(changed(base, "claims.device_class", "gpu")),
        ),
    ]:
        yield Case(f"signed-as-{name}", [attack], what, plain(base, [entry(PUBLIC, _raw(message))]), BAD)


def _pae(kind: str, length: int, payload: bytes, version: bytes = b"DSSEv1") -> bytes:
    return b"%b %d %b %d %b" % (version, len(kind), kind.encode("ascii"), length, payload)


def _message(made: Any) -> bytes:
    return signature.pae(PAYLOAD_TYPE, canonical_bytes(made))


def _points() -> Iterator[Case]:
    """A few of the many ways in which libraries differ; vectors/v1/ed25519 has them all."""
    base, good = record(), _good()
    order = signature.GROUP_ORDER
    high = (int.from_bytes(good[32:], "little") + order).to_bytes(32, "little")
    for name, public, signature_bytes, expect in [
        ("s-above-order", PUBLIC, good[:32] + high, BAD),
        ("s-zero", PUBLIC, good[:32] + bytes(32), BAD),
        ("r-identity", PUBLIC, b"\1" + bytes(31) + good[32:], BAD),
        ("all-zero", PUBLIC, bytes(64), BAD),
        ("cut", PUBLIC, good[:63], BAD),
        ("longer", PUBLIC, good + b"\0", BAD),
        ("key-identity", b"\1" + bytes(31), b"\1" + bytes(63), KEY),
        ("key-order-two", b"\xec" + b"\xff" * 30 + b"\x7f", b"\1" + bytes(63), KEY),
        ("key-zero", bytes(32), bytes(64), KEY),
        ("key-not-canonical", b"\xee" + b"\xff" * 30 + b"\x7f", good, KEY),
        ("key-no-point", b"\2" + bytes(31), good, KEY),
        ("key-short", PUBLIC[:31], good, KEY),
    ]:
        what = "A key or signature that some libraries take."
        yield Case(f"ed25519-{name}", [106], what, plain(base, [entry(public, signature_bytes)]), expect)
    what = "A signature beside the public key of somebody else."
    yield Case("ed25519-other-key", [112], what, plain(base, [entry(OTHER_PUBLIC)]), BAD)
    swapped = plain(base, [entry() | {"public_key": _text(good[:32]), "signature": _text(PUBLIC + PUBLIC)}])
    yield Case("ed25519-swapped", [112], "Key and signature have changed places.", swapped, BAD)
    for at in (0, 31, 32, 63):
        flipped = bytes(byte ^ (at == place) for place, byte in enumerate(good))
        expect = (12, "BAD_SIGNATURE", 8)
        yield Case(
            f"ed25519-bit-{at}",
            [89],
            f"One bit of byte {at} of the signature is flipped.",
            plain(base, [entry(PUBLIC, flipped)]),
            expect,
        )


def _base64() -> Iterator[Case]:
    good = entry()["signature"]
    assert good.endswith("==")
    spare = good[:-3] + chr(ord(good[-3]) + 1) + "=="
    mixed = good.replace("/", "_", 1) if "/" in good else good.replace("+", "-", 1)
    for name, what, text, expect in [
        ("spare-bits", "A spare bit is set.", spare, BASE64),
        ("line-break", "A line break after 64 characters.", good[:64] + "\n" + good[64:], BASE64),
        ("crlf", "A line break of two characters.", good[:64] + "\r\n" + good[64:], BASE64),
        ("space", "A space in front.", " " + good, BASE64),
        ("url-alphabet", "The alphabet for addresses.", good.replace("+", "-").replace("/", "_"), BASE64),
        ("mixed-alphabet", "Both alphabets.", mixed, BASE64),
        ("no-padding", "No padding.", good.rstrip("="), BASE64),
        ("less-padding", "Half the padding.", good[:-1], BASE64),
        ("more-padding", "More padding.", good + "=", BASE64),
        ("padding-inside", "Padding in the middle.", good[:44] + "==" + good[44:], BASE64),
        ("hex", "Hex in place of base64.", base64.b64decode(good).hex(), BAD),
        ("other-letter", "A letter of no alphabet.", "\N{FULLWIDTH LATIN CAPITAL LETTER A}" + good[1:], BASE64),
        ("nul", "A NUL character.", good[:-2] + "\0=", BASE64),
    ]:
        assert text != good
        file = plain(record(), [entry() | {"signature": text}])
        yield Case(f"base64-{name}", [107], f"A signature's base64: {what}", file, expect)
    key = entry()["public_key"]
    file = edit(key, key.rstrip("="), of=BASES["signed.json"])
    yield Case("base64-key-no-padding", [107], "A key's base64 without padding.", file, BASE64)


def _in_cbor() -> Iterator[Case]:
    made = record()
    table: dict[str, Any] = {"algorithm": "ed25519", "public_key": PUBLIC, "signature": _good()}
    change: Any
    for name, attack, change, expect in [
        ("text-key", 107, {"public_key": _text(PUBLIC)}, (11, "WRONG_TYPE", 8)),
        ("text-signature", 107, {"signature": _text(_good())}, (11, "WRONG_TYPE", 8)),
        ("hmac", 101, {"algorithm": "hs256"}, ALGORITHM),
        ("other-key", 112, {"public_key": OTHER_PUBLIC}, BAD),
        ("zero-key", 106, {"public_key": bytes(32)}, KEY),
        ("null-algorithm", 101, {"algorithm": ""}, ALGORITHM),
    ]:
        file = forged("signatures", [table | change])
        yield Case(f"cbor-entry-{name}", [attack], "A signature entry in CBOR that is none.", file, expect)
    yield Case(
        "cbor-entries-twice",
        [100],
        "One key signed twice.",
        forged("signatures", [table, table]),
        (12, "REPEATED_KEY", 8),
    )
    many = forge({"receipt": {}, "signatures": [{}] * 65})
    yield Case("cbor-entries-many", [100], "65 entries beside no receipt.", many, (11, "NOT_A_RECEIPT", 4))
    altered = packed(made, SEED).replace(b"\x63cpu", b"\x63gpu")
    yield Case("cbor-signed-altered", [90], "A claim of a signed receipt is changed.", altered, BAD)
