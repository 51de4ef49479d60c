"""Statements about models in the formats of others: OpenSSF Model Signing and in-toto.

OpenSSF Model Signing v1 is a Sigstore bundle: a DSSE envelope around an in-toto
Statement that lists the files of a folder with their SHA-256. It knows elliptic curve
keys and no Ed25519, so its signature needs the package ``cryptography``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import store
from kinetic.api.bundle import errors_of, resolve
from kinetic.attest import foreign_errors
from kinetic.errors import FileProblem, SignatureProblem, UsageError
from kinetic.gguf import Gguf
from receipts.export import NAMESPACE, STATEMENT_PAYLOAD_TYPE, STATEMENT_TYPE

if TYPE_CHECKING:
    from ktc.signature import KeyPair
    from ktc.verify import Findings

BUNDLE_PREDICATE = f"{NAMESPACE}#bundle/v1"
OMS_PREDICATE = "https://model_signing/signature/v1.0"
OMS_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"

IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""What `model_signing` leaves out of a folder unless told otherwise."""

MOST_KEY_BYTES = 1 << 16
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Curves that `model_signing` takes, and the hash that goes with each."""


# --- in-toto ---


def intoto(bundle: str | os.PathLike[str], pair: KeyPair, progress: store.Progress | None = None) -> bytes:
    """An in-toto Statement about a bundle and the model in it, in a DSSE envelope signed by ``pair``.

    The bundle is verified whole first, SHA-256 included. Raises FileProblem, Malformed, SignatureProblem and others.
    """
    path = resolve(bundle)
    with errors_of(path):
        from ktc import signature
        from ktc.verify import verify

        found = verify(path, sha256=True, progress=progress)
        statement = _bundle_statement(path, found)
        payload = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        signed = signature.sign(pair, STATEMENT_PAYLOAD_TYPE, payload)
        envelope = _envelope(payload, signed, signature.key_id(pair.public))
    return (json.dumps(envelope, indent=2) + "\n").encode("ascii")


def _bundle_statement(path: Path, found: Findings) -> dict[str, Any]:
    manifest, whole = found.manifest, store.digests(path, rehash=True)
    gguf = next(section for section in found.sections if section.kind == "gguf")
    predicate = {
        "manifestDigest": found.manifest_digest,
        **{name: manifest[name] for name in ("name", "release", "architecture", "profiles", "derivation")},
        "resolvedDependencies": [_resource(entry) for entry in manifest["sources"]],
        "signers": found.signers,
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": path.name, "digest": {"sha256": whole.sha256, "blake3": whole.blake3}},
            {"name": manifest["file"], "digest": {"sha256": gguf.sha256, "blake3": gguf.blake3}},
        ],
        "predicateType": BUNDLE_PREDICATE,
        "predicate": predicate,
    }


def _resource(entry: dict[str, Any]) -> dict[str, Any]:
    return {"name": entry["name"], "digest": {"sha256": entry["sha256"], "blake3": entry["blake3"]}}


def _envelope(payload: bytes, signed: bytes, key_id: str) -> dict[str, Any]:
    return {
        "payload": b64encode(payload).decode("ascii"),
        "payloadType": STATEMENT_PAYLOAD_TYPE,
        "signatures": [{"sig": b64encode(signed).decode("ascii"), "keyid": key_id}],
    }


# --- OpenSSF Model Signing ---


def oms(
    model: str | os.PathLike[str],
    key_file: str | os.PathLike[str],
    output: str | os.PathLike[str],
    progress: store.Progress | None = None,
) -> bytes:
    """The bytes of a signature file over a folder that holds a model, or over one file, for ``model_signing verify``.

    ``output`` is where they will stand: a signature inside the folder isn't part of what it signs.
    ``progress`` is told (bytes done, in all). Raises UsageError without the package
    ``cryptography``, SignatureProblem for a key that can't be used, FileProblem, and of
    models that can't be opened, or bundles that aren't intact, what these are refused for.
    """
    key = _EllipticKey(key_file)
    root = Path(os.path.abspath(model))
    if not root.is_dir():
        root = Path(os.path.abspath(store.resolve(model)))
    ignored = [*IGNORED, *_inside(root, Path(os.path.abspath(output)))]
    resources = list(_resources(root, ignored, progress))
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": root.name, "digest": {"sha256": _root_digest(resources)}}],
        "predicateType": OMS_PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": ignored,
            },
            "resources": resources,
        },
    }
    payload = json.dumps(statement, ensure_ascii=False, indent=2).encode("utf-8")
    material = {"publicKey": {"hint": key.hint}, "tlogEntries": []}
    envelope = _envelope(payload, key.sign(_pae(payload)), "")
    bundle = {"mediaType": OMS_MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return (json.dumps(bundle) + "\n").encode("ascii")


def _inside(root: Path, output: Path) -> list[str]:
    return [output.relative_to(root).as_posix()] if root.is_dir() and output.is_relative_to(root) else []


def _pae(payload: bytes) -> bytes:
    from ktc.signature import pae

    return pae(STATEMENT_PAYLOAD_TYPE, payload)


def _root_digest(resources: list[dict[str, str]]) -> str:
    return hashlib.sha256(b"".join(bytes.fromhex(entry["digest"]) for entry in resources)).hexdigest()


def _resources(root: Path, ignored: list[str], progress: store.Progress | None) -> Iterator[dict[str, str]]:
    """Name and SHA-256 of each file, by name; a model that is one file is called "."."""
    files = (
        {path.relative_to(root).as_posix(): path for path in _files(root, ignored)} if root.is_dir() else {".": root}
    )
    if not files:
        raise FileProblem(f"there are no files in {root}", name="NO_FILE")
    sizes = {name: path.stat().st_size for name, path in files.items()}
    bundles = {name for name, path in files.items() if path.suffix == ".ktc" or store.is_bundle(path)}
    total, done = sum(sizes.values()) + sum(sizes[name] for name in bundles), 0
    for name in sorted(files):  # all of them, before the first is hashed to be signed
        if name in bundles:
            _verify(files[name], _from(done, total, progress))
            done += sizes[name]
        elif files[name].suffix == ".gguf":
            Gguf.open(files[name]).close()
    for name in sorted(files):
        found = store.digests(files[name], rehash=True, progress=_from(done, total, progress))
        done += sizes[name]
        yield {"name": name, "algorithm": "sha256", "digest": found.sha256}


def _from(begun: int, total: int, progress: store.Progress | None) -> store.Progress | None:
    """``progress`` for one of several files."""
    return (lambda part, _: progress(begun + part, total)) if progress else None


def _verify(path: Path, progress: store.Progress | None) -> None:
    with errors_of(path):
        from ktc.verify import verify

        verify(path, sha256=True, progress=progress)


def _files(folder: Path, ignored: list[str]) -> Iterator[Path]:
    left_out = {folder / name for name in ignored}

    def walk(inner: Path) -> Iterator[Path]:
        for path in sorted(inner.iterdir()):
            if path in left_out:
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise FileProblem(f"{path} is neither a file nor a folder, and can't be signed", name="NOT_A_FILE")
            yield from walk(path) if path.is_dir() else [path]

    try:
        yield from walk(folder)
    except OSError as error:
        raise FileProblem(f"{folder} can't be read: {error.strerror}", name="UNREADABLE") from error


class _EllipticKey:
    """A secret key on one of CURVES, from a PEM file that only its owner can read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with foreign_errors():
            from ktc import keys

            data = keys.read_secret_file(path, MOST_KEY_BYTES)
            keys.require_secret(data, os.fspath(path))
        with _library():
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        try:
            key = serialization.load_pem_private_key(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            problem = f"{os.fspath(path)} holds no secret key in PEM that can be read without a passphrase"
            raise SignatureProblem(problem, name="BAD_KEY") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
            make = "`openssl ecparam -name prime256v1 -genkey -noout` makes one"
            problem = f"{os.fspath(path)} holds a key of another kind: Model Signing takes elliptic curve keys on P-256"
            raise SignatureProblem(f"{problem}, P-384 and P-521; {make}", name="UNKNOWN_ALGORITHM")
        self._key = key
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        public = key.public_key().public_bytes(serialization.Encoding.PEM, spki)
        self.hint = hashlib.sha256(public).hexdigest()

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        signed: bytes = self._key.sign(message, ec.ECDSA(getattr(hashes, CURVES[self._key.curve.name])()))
        return signed


@contextlib.contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except ImportError:
        message = "this needs the package cryptography: `pip install kinetic-engine[oms]` brings it"
        raise UsageError(message, name="NO_CRYPTOGRAPHY") from None
