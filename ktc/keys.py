"""Key files: Ed25519 keys in PEM, as openssl writes them (RFC 8410).

A secret key is PKCS#8 ("PRIVATE KEY") in a file of mode 0600, a public key is
SubjectPublicKeyInfo ("PUBLIC KEY") beside it, its name ending in ``.pub``.
``openssl genpkey -algorithm ed25519`` and ``openssl pkey -pubout`` give the
same bytes. For 32-byte keys DER is a fixed prefix and the key, so nothing here
parses DER; whatever else a file holds is refused by what it is.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from contextlib import suppress
from typing import NoReturn

from ktc import limits, signature
from ktc.canonical import show
from ktc.errors import LimitExceeded, SignatureProblem
from ktc.files import Name, read_guarded, write_new
from ktc.signature import KeyPair

SECRET_LABEL, PUBLIC_LABEL = "PRIVATE KEY", "PUBLIC KEY"
SECRET_PREFIX = bytes.fromhex("302e020100300506032b657004220420")
"""DER of RFC 8410's OneAsymmetricKey up to the seed: version 0, id-Ed25519, an octet string in an octet string."""

PUBLIC_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""DER of SubjectPublicKeyInfo up to the key: id-Ed25519, a bit string without unused bits."""

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\r?\n((?:[A-Za-z0-9+/=]+\r?\n)*)-----END \1-----(?:\r?\n)?")
_LABEL = re.compile(r"-----BEGIN ([^\r\n]{1,64}?)-----")

_ALGORITHMS = {  # DER of the object identifier, and the algorithm's name
    bytes.fromhex("06092a864886f70d010101"): "RSA",
    bytes.fromhex("06092a864886f70d01010a"): "RSA",
    bytes.fromhex("06072a8648ce3d0201"): "elliptic curve (ECDSA)",
    bytes.fromhex("06072a8648ce380401"): "DSA",
    bytes.fromhex("06032b656e"): "X25519",
    bytes.fromhex("06032b656f"): "X448",
    bytes.fromhex("06032b6571"): "Ed448",
}

_FOREIGN_LABELS = {  # what a PEM block's label says, if it is none of ours
    "RSA PRIVATE KEY": "an RSA key",
    "RSA PUBLIC KEY": "an RSA key",
    "DSA PRIVATE KEY": "a DSA key",
    "EC PRIVATE KEY": "an elliptic curve (ECDSA) key",
    "EC PARAMETERS": "an elliptic curve (ECDSA) key",
    "OPENSSH PRIVATE KEY": "a key in OpenSSH's own format",
    "SSH2 PUBLIC KEY": "a key in SSH's own format",
    "PGP PRIVATE KEY BLOCK": "an OpenPGP key",
    "PGP PUBLIC KEY BLOCK": "an OpenPGP key",
}

_MAKE_ONE = "only Ed25519 keys are taken: make one with `kinetic keygen` or `openssl genpkey -algorithm ed25519`"


def public_name(path: Name) -> str:
    """Where the public key of a secret key file stands."""
    return os.fspath(path) + ".pub"


def write_key_pair(path: Name, seed: bytes | None = None) -> KeyPair:
    """Write a new secret key to ``path`` and its public key beside it: both or neither, and nothing is overwritten.

    Without ``seed`` the system's generator gives one. Raises FileProblem.
    """
    pair = signature.key_pair(os.urandom(signature.SEED_BYTES) if seed is None else seed)
    write_new(path, _pem(SECRET_LABEL, SECRET_PREFIX + pair.seed), mode=0o600)
    try:
        write_new(public_name(path), _pem(PUBLIC_LABEL, PUBLIC_PREFIX + pair.public))
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    return pair


def read_secret_key(path: Name) -> KeyPair:
    """The pair whose secret key is in a file that only its owner can read.

    Raises FileProblem, LimitExceeded, SignatureProblem.
    """
    data = read_secret_file(path)
    return signature.key_pair(_unwrap(data, os.fspath(path), SECRET_LABEL, SECRET_PREFIX))


def read_secret_file(path: Name, limit: int = limits.MAX_KEY_FILE_BYTES) -> bytes:
    """The bytes of a file that only its owner can read, unless it holds no secret key: then any mode will do.

    Of a file that holds none the caller says what it is, and not that its mode gives a secret away.
    Raises FileProblem, LimitExceeded, SignatureProblem EXPOSED_KEY, SYMLINK.
    """
    try:
        return _read_key_file(path, limit, is_secret=True)
    except SignatureProblem as error:
        if error.name != "EXPOSED_KEY" or SECRET_LABEL.encode() in (data := _read_key_file(path, limit)):
            raise
        return data


def require_secret(data: bytes, name: str) -> None:
    """Raises SignatureProblem for a file that is no PEM with a secret key, whatever the kind of key."""
    text = data.decode("utf-8", errors="replace")
    if not any(SECRET_LABEL in label for label in _LABEL.findall(text)):
        _refuse_other(name, text, SECRET_LABEL)


def read_public_key(path: Name) -> bytes:
    """The 32 bytes of a public key: a canonical point of the prime-order group.

    Raises FileProblem, LimitExceeded, SignatureProblem.
    """
    name = os.fspath(path)
    public = _unwrap(_read_key_file(path, limits.MAX_KEY_FILE_BYTES), name, PUBLIC_LABEL, PUBLIC_PREFIX)
    try:
        signature.require_key(public)
    except SignatureProblem as error:
        raise SignatureProblem(f"{name}: {error}", name=error.name) from None
    return public


def _read_key_file(path: Name, limit: int, *, is_secret: bool = False) -> bytes:
    try:
        return read_guarded(path, limit, is_secret=is_secret)
    except LimitExceeded as error:
        raise LimitExceeded(f"{error}, and so is no key file", name=error.name) from None


def _pem(label: str, der: bytes) -> bytes:
    """One block; neither kind of key fills more than the one line of 64 characters that RFC 7468 allows."""
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode('ascii')}\n-----END {label}-----\n".encode("ascii")


def _unwrap(data: bytes, name: str, label: str, prefix: bytes) -> bytes:
    """The key in a PEM file that holds one block with this label, and in it this prefix and 32 bytes."""
    text = data.decode("utf-8", errors="replace")
    block = _PEM.fullmatch(text)
    if block is None or block[1] != label:
        _refuse_other(name, text, label)
    der = _decode(block[2])
    if len(der) == len(prefix) + 32 and der.startswith(prefix):
        return der[len(prefix) :]
    for identifier, algorithm in _ALGORITHMS.items():
        if identifier in der[:64]:
            _refuse(name, f"holds a key for {algorithm}, and {_MAKE_ONE}", "UNKNOWN_ALGORITHM")
    if prefix[5:12] in der[:20]:
        _refuse(name, f"holds an Ed25519 key with more than the key itself, which openssl doesn't write; {_MAKE_ONE}")
    _refuse(name, f"holds a damaged key, or one of another kind; {_MAKE_ONE}")


def _decode(body: str) -> bytes:
    """Base64 in one spelling; b"" for any other."""
    text = "".join(body.split())
    try:
        der = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return der if base64.b64encode(der).decode("ascii") == text else b""


def _refuse_other(name: str, text: str, wanted: str) -> NoReturn:
    """Say what a file is that isn't the one block asked for."""
    labels = _LABEL.findall(text)
    label = labels[0] if labels else ""
    if label in _FOREIGN_LABELS:
        _refuse(name, f"holds {_FOREIGN_LABELS[label]}, and {_MAKE_ONE}", "UNKNOWN_ALGORITHM")
    if label == "ENCRYPTED PRIVATE KEY":
        _refuse(name, f"is encrypted with a passphrase: `openssl pkey -in {name} -out NEW` takes it off")
    if label == "CERTIFICATE":
        _refuse(name, f"is a certificate: `openssl x509 -in {name} -noout -pubkey` gives its public key")
    if label == PUBLIC_LABEL != wanted:
        _refuse(name, "is a public key where a secret one is needed: name the file without .pub")
    if label == SECRET_LABEL != wanted:
        _refuse(
            name, f"is a secret key where a public one is needed: name {public_name(name)}, and show this to nobody"
        )
    if label == wanted:
        _refuse(name, "must hold one PEM block and nothing else, as openssl writes it")
    if labels:
        _refuse(name, f"holds {show(label)}, which is no key")
    if text.startswith(("ssh-", "ecdsa-", "sk-")):
        _refuse(name, f"is a public key of OpenSSH, and {_MAKE_ONE}", "UNKNOWN_ALGORITHM")
    _refuse(name, f"is no key file in PEM: it must begin with -----BEGIN {wanted}-----")


def _refuse(name: str, fault: str, reason: str = "BAD_KEY") -> NoReturn:
    raise SignatureProblem(f"{name} {fault}", name=reason)
