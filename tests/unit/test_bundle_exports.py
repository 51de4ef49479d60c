"""Statements about models for other tools: in-toto, and OpenSSF Model Signing judged by its own verifier."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from pathlib import Path

import pytest

from kinetic import store
from kinetic.api.bundle import pack
from kinetic.api.exports import intoto, oms
from kinetic.errors import FileProblem, KineticError, Malformed, SignatureProblem
from ktc import signature
from tests.support.talking_model import write_talker


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


@pytest.fixture
def pair():
    return signature.key_pair(bytes(range(32)))


def refusal(kind: type[KineticError], name: str, call, *words, **options) -> str:
    with pytest.raises(kind) as caught:
        call(*words, **options)
    assert caught.value.name == name
    return str(caught.value)


def test_an_in_toto_statement_names_the_bundle_and_the_model(tmp_path, pair):
    path = write_talker(tmp_path / "a.gguf")
    written = pack(path, tmp_path / "a.ktc", sign=[pair])
    envelope = json.loads(intoto(tmp_path / "a.ktc", pair))
    payload, (signed,) = b64decode(envelope["payload"]), envelope["signatures"]
    signature.verify(pair.public, "application/vnd.in-toto+json", payload, b64decode(signed["sig"]))
    assert signed["keyid"] == signature.key_id(pair.public)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    for name, subject in zip(("a.ktc", "a.gguf"), statement["subject"], strict=True):
        found = store.digests(tmp_path / name)
        assert subject == {"name": name, "digest": {"sha256": found.sha256, "blake3": found.blake3}}
    assert statement["predicate"]["manifestDigest"] == written.manifest_digest
    assert statement["predicate"]["signers"] == [signature.key_id(pair.public)]


def test_nothing_is_said_about_a_damaged_bundle(tmp_path, pair):
    pack(write_talker(tmp_path / "a.gguf"), tmp_path / "a.ktc")
    data = bytearray((tmp_path / "a.ktc").read_bytes())
    data[60_000] ^= 1
    (tmp_path / "a.ktc").write_bytes(data)
    refusal(Malformed, "SECTION_DIGEST", intoto, tmp_path / "a.ktc", pair)


@pytest.fixture
def model_signing(tmp_path):
    """``judge(model, signature)`` raises unless ``model_signing`` accepts it; secret keys beside it."""
    pytest.importorskip("cryptography")
    verifying = pytest.importorskip("model_signing.verifying")
    return lambda model, file, public: (
        verifying.Config().use_elliptic_key_verifier(public_key=public).verify(Path(model), Path(file))
    )


def elliptic_key(folder: Path, curve: str = "SECP256R1") -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(getattr(ec, curve)())
    form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    secret, public = folder / "ec.pem", folder / "ec.pub"
    secret.touch(0o600)
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, spki))
    return secret, public


@pytest.fixture
def model_folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    write_talker(folder / "a.gguf")
    (folder / "more" / "\u00fc b.txt").write_text("x")
    (folder / "empty").write_bytes(b"")
    (folder / ".gitattributes").write_text("y")
    return folder


@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
@pytest.mark.parametrize("place", ["model.sig", "model/model.sig"])
def test_model_signing_accepts_what_is_exported(tmp_path, model_signing, model_folder, curve, place):
    secret, public = elliptic_key(tmp_path, curve)
    data = oms(model_folder, secret, tmp_path / place)
    resources = json.loads(b64decode(json.loads(data)["dsseEnvelope"]["payload"]))["predicate"]["resources"]
    assert [entry["name"] for entry in resources] == ["a.gguf", "empty", "more/\u00fc b.txt"]
    (tmp_path / place).write_bytes(data)
    model_signing(model_folder, tmp_path / place, public)
    with (model_folder / "a.gguf").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=r"Hash mismatch for .*a\.gguf"):
        model_signing(model_folder, tmp_path / place, public)


def test_model_signing_sees_a_file_too_many_and_another_key(tmp_path, model_signing, model_folder):
    secret, public = elliptic_key(tmp_path)
    (tmp_path / "model.sig").write_bytes(oms(model_folder, secret, tmp_path / "model.sig"))
    (model_folder / "more" / "new").write_bytes(b"")
    with pytest.raises(ValueError, match="Extra files"):
        model_signing(model_folder, tmp_path / "model.sig", public)
    (model_folder / "more" / "new").unlink()
    secret.unlink()
    _, other = elliptic_key(tmp_path)
    with pytest.raises(ValueError, match="Key mismatch"):
        model_signing(model_folder, tmp_path / "model.sig", other)


def test_a_model_in_one_file_can_be_signed_too(tmp_path, model_signing):
    secret, public = elliptic_key(tmp_path)
    pack(write_talker(tmp_path / "a.gguf"), tmp_path / "a.ktc")
    (tmp_path / "model.sig").write_bytes(oms(tmp_path / "a.ktc", secret, tmp_path / "model.sig"))
    model_signing(tmp_path / "a.ktc", tmp_path / "model.sig", public)


def test_what_cannot_be_signed_for_model_signing(tmp_path, model_folder):
    pytest.importorskip("cryptography")
    secret, public = elliptic_key(tmp_path)
    (tmp_path / "void").mkdir()
    refusal(FileProblem, "NO_FILE", oms, tmp_path / "void", secret, tmp_path / "s")
    (model_folder / "link").symlink_to("a.gguf")
    refusal(FileProblem, "NOT_A_FILE", oms, model_folder, secret, tmp_path / "s")
    (model_folder / "link").unlink()
    os.mkfifo(model_folder / "pipe")
    refusal(FileProblem, "NOT_A_FILE", oms, model_folder, secret, tmp_path / "s")
    (model_folder / "pipe").unlink()
    os.chmod(public, 0o600)
    refusal(SignatureProblem, "BAD_KEY", oms, model_folder, public, tmp_path / "s")
    os.chmod(secret, 0o644)
    refusal(SignatureProblem, "EXPOSED_KEY", oms, model_folder, secret, tmp_path / "s")
    refusal(FileProblem, "UNREADABLE", oms, model_folder, tmp_path / "none", tmp_path / "s")


@pytest.mark.parametrize("name", ["d.ktc", "void.ktc", "void.gguf", "text.gguf"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_no_sound_model_is_not_signed(tmp_path, model_folder, name, is_folder):
    pytest.importorskip("cryptography")
    secret, _ = elliptic_key(tmp_path)
    pack(model_folder / "a.gguf", tmp_path / "d.ktc")
    damaged = bytearray((tmp_path / "d.ktc").read_bytes())
    damaged[60_000] ^= 1
    path = model_folder / "more" / name
    path.write_bytes({"d.ktc": bytes(damaged), "text.gguf": b"text"}.get(name, b""))
    with pytest.raises(Malformed, match=name):
        oms(model_folder if is_folder else path, secret, tmp_path / "s")


def test_progress_counts_what_is_verified_and_what_is_hashed(tmp_path, model_folder):
    pytest.importorskip("cryptography")
    secret, _ = elliptic_key(tmp_path)
    pack(model_folder / "a.gguf", model_folder / "b.ktc")
    steps = []
    oms(model_folder, secret, tmp_path / "s", lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps) and len({total for _, total in steps}) == 1 and steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_that_is_no_secret_key_is_called_what_it_is(tmp_path, model_folder, mode):
    pytest.importorskip("cryptography")
    _, public = elliptic_key(tmp_path)
    os.chmod(public, mode)
    assert "is a public key" in refusal(SignatureProblem, "BAD_KEY", oms, model_folder, public, tmp_path / "s")
    public.write_text('{"receipt": {}}')
    assert "is no key file" in refusal(SignatureProblem, "BAD_KEY", oms, model_folder, public, tmp_path / "s")


def test_model_signing_knows_no_ed25519(tmp_path, model_folder):
    pytest.importorskip("cryptography")
    from ktc.keys import write_key_pair

    write_key_pair(tmp_path / "k")
    assert "P-256" in refusal(SignatureProblem, "UNKNOWN_ALGORITHM", oms, model_folder, tmp_path / "k", tmp_path / "s")
