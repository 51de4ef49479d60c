"""Ed25519 over DSSE's pre-authentication encoding, with strict checks of our own.

RFC 8032 leaves room for keys and signatures that some libraries take and
others refuse. The checks here leave none: S below the group order, A and R
canonical points of the prime-order group; only then the library decides.
PyNaCl is imported where a curve is needed: it takes longer than all the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from ktc.errors import SignatureProblem, Unverifiable

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
"""L of RFC 8032 section 5.1."""

SEED_BYTES, KEY_BYTES, SIGNATURE_BYTES = 32, 32, 64


class KeyPair(NamedTuple):
    """A secret 32-byte seed and the public key it gives."""

    seed: bytes
    public: bytes

    def __repr__(self) -> str:
        """Without the seed: what is printed or logged must not let others sign."""
        return f"KeyPair(seed=..., public={self.public!r})"


def key_pair(seed: bytes) -> KeyPair:
    """The pair of a secret seed of 32 random bytes."""
    if len(seed) != SEED_BYTES:
        raise SignatureProblem(f"a secret key has {SEED_BYTES} bytes, not {len(seed)}", name="BAD_KEY")
    from nacl import bindings

    public, _ = bindings.crypto_sign_seed_keypair(seed)
    return KeyPair(seed, public)


def key_id(public: bytes) -> str:
    """Full BLAKE3 of the 32 public bytes, in hex."""
    return blake3(public).hexdigest()


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE v1's pre-authentication encoding: what is signed names its own type and lengths."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(pair: KeyPair, payload_type: str, payload: bytes) -> bytes:
    """Signature, 64 bytes. A public key that is not the seed's is refused: signing with it leaks the seed."""
    return sign_bytes(pair, pae(payload_type, payload))


def sign_bytes(pair: KeyPair, message: bytes) -> bytes:
    """The same over plain bytes, for formats that have an encoding of their own for what is signed."""
    from nacl import bindings

    public, secret = bindings.crypto_sign_seed_keypair(pair.seed)
    if public != pair.public:
        raise SignatureProblem("the public key does not belong to the secret key", name="KEY_MISMATCH")
    return bindings.crypto_sign(message, secret)[:SIGNATURE_BYTES]


def verify(public: bytes, payload_type: str, payload: bytes, signature: bytes) -> None:
    """Return if the signature holds; raise SignatureProblem otherwise."""
    verify_bytes(public, pae(payload_type, payload), signature)


def verify_bytes(public: bytes, message: bytes, signature: bytes) -> None:
    """The same for a signature over plain bytes."""
    from nacl import bindings
    from nacl.exceptions import BadSignatureError

    require_key(public)
    _require_signature_form(signature)
    try:
        bindings.crypto_sign_open(signature + message, public)
    except BadSignatureError:
        raise SignatureProblem("the signature does not match what was signed", name="BAD_SIGNATURE") from None


def require_key(public: bytes) -> None:
    """Refuse a public key that is not a canonical point of the prime-order group."""
    if len(public) != KEY_BYTES:
        raise SignatureProblem(f"a public key has {KEY_BYTES} bytes, not {len(public)}", name="BAD_KEY")
    if not _is_valid_point(public):
        raise SignatureProblem("the public key is not a point of the prime-order group", name="BAD_KEY")


def _require_signature_form(signature: bytes) -> None:
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureProblem(f"a signature has {SIGNATURE_BYTES} bytes, not {len(signature)}", name="BAD_SIGNATURE")
    if int.from_bytes(signature[32:], "little") >= GROUP_ORDER:
        raise SignatureProblem("the signature's S is not below the group order", name="BAD_SIGNATURE")
    if not _is_valid_point(signature[:32]):
        raise SignatureProblem("the signature's R is not a point of the prime-order group", name="BAD_SIGNATURE")


def _is_valid_point(point: bytes) -> bool:
    from nacl import bindings

    if not bindings.has_crypto_core_ed25519:
        raise Unverifiable("this build of PyNaCl cannot check points of the curve", name="NO_ED25519")
    return bool(bindings.crypto_core_ed25519_is_valid_point(point))
