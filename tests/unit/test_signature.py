"""Ed25519: the encoding that is signed, and every signature that must not hold."""

import pytest

from ktc import signature
from ktc.errors import SignatureProblem

PAIR = signature.key_pair(bytes(range(32)))
KIND, PAYLOAD = "application/test", b"payload"

SMALL_ORDER = [  # the canonical encodings of the eight points of small order, y then the sign of x
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NOT_CANONICAL = [
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # y = p + 1
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # y = p
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0100000000000000000000000000000000000000000000000000000000000080",  # x = 0 with a sign
    "0200000000000000000000000000000000000000000000000000000000000000",  # not on the curve
]


def refused(public, payload, signed, kind=KIND):
    with pytest.raises(SignatureProblem) as caught:
        signature.verify(public, kind, payload, signed)
    return caught.value.name


def test_pae_is_the_one_of_dsse():
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert signature.pae("http://example.com/HelloWorld", b"hello world") == expected
    assert signature.pae("", b"") == b"DSSEv1 0  0 "


def test_key_pair_is_rfc_8032s():
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert signature.key_pair(seed).public.hex() == public


def test_a_signature_holds_for_its_payload_only():
    signed = signature.sign(PAIR, KIND, PAYLOAD)
    signature.verify(PAIR.public, KIND, PAYLOAD, signed)
    assert refused(PAIR.public, PAYLOAD + b"x", signed) == "BAD_SIGNATURE"
    assert refused(PAIR.public, PAYLOAD, signed, kind="application/other") == "BAD_SIGNATURE"
    assert refused(signature.key_pair(bytes(32)).public, PAYLOAD, signed) == "BAD_SIGNATURE"


def test_every_bit_of_a_signature_counts():
    signed = signature.sign(PAIR, KIND, PAYLOAD)
    for bit in range(512):
        flipped = bytearray(signed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert refused(PAIR.public, PAYLOAD, bytes(flipped)) == "BAD_SIGNATURE"


def test_s_plus_the_order_is_refused():
    signed = signature.sign(PAIR, KIND, PAYLOAD)
    scalar = int.from_bytes(signed[32:], "little") + signature.GROUP_ORDER
    assert refused(PAIR.public, PAYLOAD, signed[:32] + scalar.to_bytes(32, "little")) == "BAD_SIGNATURE"


@pytest.mark.parametrize("point", [bytes.fromhex(text) for text in SMALL_ORDER + NOT_CANONICAL])
def test_points_outside_the_prime_order_group(point):
    signed = signature.sign(PAIR, KIND, PAYLOAD)
    assert refused(point, PAYLOAD, signed) == "BAD_KEY"
    assert refused(PAIR.public, PAYLOAD, point + signed[32:]) == "BAD_SIGNATURE"
    assert refused(PAIR.public, PAYLOAD, point + bytes(32)) == "BAD_SIGNATURE"


def test_a_key_with_a_torsion_part_is_refused():
    from nacl import bindings

    mixed = bindings.crypto_core_ed25519_add(PAIR.public, bytes.fromhex(SMALL_ORDER[4]))
    assert refused(mixed, PAYLOAD, signature.sign(PAIR, KIND, PAYLOAD)) == "BAD_KEY"


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_lengths(length):
    assert refused(bytes(length), PAYLOAD, bytes(64)) == "BAD_KEY"
    if length != 64:
        assert refused(PAIR.public, PAYLOAD, bytes(length)) == "BAD_SIGNATURE"
    if length != 32:
        with pytest.raises(SignatureProblem):
            signature.key_pair(bytes(length))


def test_signing_with_a_foreign_public_key_is_refused():
    other = signature.key_pair(bytes(32))
    with pytest.raises(SignatureProblem) as caught:
        signature.sign(signature.KeyPair(PAIR.seed, other.public), KIND, PAYLOAD)
    assert caught.value.name == "KEY_MISMATCH"


def test_key_id_is_the_full_blake3_of_the_key():
    from blake3 import blake3

    assert signature.key_id(PAIR.public) == blake3(PAIR.public).hexdigest()


def test_a_key_pair_that_is_printed_keeps_its_seed():
    pair = signature.key_pair(bytes(range(32)))
    for text in (repr(pair), str(pair), f"{pair}", f"{[pair]}"):
        assert repr(pair.public) in text and "\\x01\\x02" not in text.replace(repr(pair.public), "")
