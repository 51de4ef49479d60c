"""``kinetic pull hf:...`` with the real ``huggingface_hub`` and a hub on localhost."""

from __future__ import annotations

import fcntl
import hashlib
import sys
import time
from pathlib import Path

import pytest

from kinetic import hub as pulling
from kinetic import provenance, pull, store
from kinetic.errors import FileProblem, KineticError, LicenseNotAccepted, Malformed, NetworkError, UsageError
from tests.support.hub_server import COMMIT, OLDER, Hub, Repo, serve
from tests.unit.test_pull import GGUF, OTHER_GGUF, small_gguf

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

REPO = "some-one/Tiny-1B-GGUF"
NAME = "Tiny-1B-Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    yield tmp_path / "home"
    huggingface_hub.close_session()


@pytest.fixture
def hub(monkeypatch):
    with serve(Hub()) as hub:
        hub.repos[REPO] = Repo({NAME: GGUF, "README.md": b"# Tiny"})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def small_pieces(monkeypatch):
    """The library takes 10 MB from a connection at a time; what is less is lost with it."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)


def kept() -> list[str]:
    models = store.folder("models")
    files = (path for path in models.rglob("*") if path.is_file() and path.name != provenance.FILE)
    return sorted(path.relative_to(models).as_posix() for path in files)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refused(source: str, kind: type[KineticError], name: str) -> str:
    with pytest.raises(kind) as caught:
        pull.pull(source)
    text = str(caught.value)
    assert caught.value.name == name, (caught.value.name, text)
    assert "\n" not in text and "secret" not in text
    return text


# --- what is fetched -----------------------------------------------------------


@pytest.mark.parametrize("source", [f"hf:{REPO}:Q4_K_M", f"{REPO}:q4_k_m", f"hf:{REPO}", f"hf:{REPO}:{NAME}"])
def test_a_model_comes_under_its_own_name(hub, source):
    lines: list[str] = []
    steps: list[tuple[int, int]] = []
    path = pull.pull(source, say=lines.append, on_fetch=lambda *step: steps.append(step))
    assert path == store.folder("models") / NAME and path.read_bytes() == GGUF
    assert kept() == [NAME]
    assert lines[0].startswith(f"Fetching {NAME} (") and COMMIT[:12] in lines[0]
    assert lines[-1] == "Run it with: kinetic run Tiny-1B-Q4_K_M"
    assert steps[-1] == (len(GGUF), len(GGUF))


def test_names_that_run_a_pulled_model(hub):
    path = pull.pull(f"hf:{REPO}@main:Q4_K_M")
    names = (f"hf:{REPO}", f"{REPO}:Q4_K_M", f"hf:{REPO}@{COMMIT}", f"hf:{REPO}@{COMMIT[:8]}:{NAME}", f"hf:{REPO}@main")
    assert {store.resolve(name) for name in (*names, "Tiny-1B-Q4_K_M", NAME)} == {path}
    for name in (f"hf:{REPO}:Q8_0", f"hf:{REPO}@{OLDER}", f"{REPO}x:Q4_K_M"):
        with pytest.raises(FileProblem) as caught:
            store.resolve(name)
        assert caught.value.name == "NOT_PULLED" and f"kinetic pull {name}" in str(caught.value)


def test_again_is_no_download(hub):
    path = pull.pull(f"hf:{REPO}")
    before = len(hub.ranges())
    lines: list[str] = []
    assert pull.pull(f"hf:{REPO}", say=lines.append) == path
    assert "already here" in lines[0] and len(hub.ranges()) == before == 1


def test_the_revision_is_pinned(hub):
    hub.repos[REPO].branches["v1"] = OLDER
    for source in (f"hf:{REPO}@v1:Q4_K_M", f"hf:{REPO}:Q4_K_M@{OLDER}"):
        pull.pull(source)
        assert any(f"/revision/{source.rpartition('@')[2].partition(':')[0]}" in path for _, path, _ in hub.requests)
    assert all(f"/resolve/{OLDER}/" in path for _, path, _ in hub.requests if "/resolve/" in path)
    refused(f"hf:{REPO}@v2:Q4_K_M", NetworkError, "NO_REVISION")


def test_all_files_of_a_split_model_and_no_others(hub):
    parts = {f"Q8_0/T-Q8_0-0000{number}-of-00003.gguf": small_gguf(f"blk.{number}.x") for number in (1, 2, 3)}
    others = {NAME: GGUF, "mmproj-Q8_0.gguf": GGUF, "T-Q8_0.imatrix.gguf": GGUF}
    hub.repos[REPO] = Repo(parts | others)
    path = pull.pull(f"hf:{REPO}:Q8_0")
    assert kept() == sorted(name.rpartition("/")[2] for name in parts)
    assert path.name == "T-Q8_0-00001-of-00003.gguf"
    assert [(model.name, model.size) for model in store.pulled()] == [(path.stem, sum(map(len, parts.values())))]
    assert store.resolve(f"hf:{REPO}:Q8_0") == path


def test_a_part_that_is_missing(hub):
    hub.repos[REPO] = Repo({"a-00001-of-00002.gguf": GGUF})
    assert "a-00002-of-00002.gguf" in refused(f"hf:{REPO}", Malformed, "NO_SHARD")


def test_a_file_that_is_not_in_lfs_is_checked_by_its_git_name(hub):
    hub.repos[REPO].untracked = {NAME}
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF
    assert pull.pull(f"hf:{REPO}").name == NAME and len(hub.ranges()) == 1


@pytest.mark.parametrize(
    ("files", "choice", "name", "words"),
    [
        (["a.Q2_K.gguf", "a.Q3_K.gguf"], "", "NO_CHOICE", ["could mean several", "Q2_K, Q3_K", f"hf:{REPO}:Q2_K"]),
        (["a.Q4_K_M.gguf", "b.Q4_K_M.gguf"], ":Q4_K_M", "NO_CHOICE", ["a.Q4_K_M.gguf, b.Q4_K_M.gguf"]),
        (["a.Q4_K_M.gguf", "a.Q8_0.gguf"], ":Q5_K", "NO_CHOICE", ["has no Q5_K", "Q4_K_M, Q8_0"]),
        (["mmproj-f16.gguf", "x.safetensors"], "", "NO_MODELS", ["no GGUF"]),
    ],
)
def test_what_cannot_be_told_is_refused_and_listed(hub, files, choice, name, words):
    hub.repos[REPO] = Repo(dict.fromkeys(files, GGUF))
    text = refused(f"hf:{REPO}{choice}", UsageError, name)
    assert all(word in text for word in words), text
    assert kept() == []


def test_a_local_file_wins_over_a_plain_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b:c.gguf").write_bytes(GGUF)
    with pytest.raises(UsageError) as caught:
        pull.pull("a/b:c.gguf")
    assert caught.value.name == "BAD_NAME" and not hub.requests


@pytest.mark.parametrize("name", ["x\n.gguf", ".hidden/.gguf", "a\x1b[2J.gguf"])
def test_hostile_file_names(hub, name):
    hub.repos[REPO] = Repo({name: GGUF})
    refused(f"hf:{REPO}", Malformed, "BAD_NAME")
    assert kept() == []


def test_what_is_no_model_is_not_kept(hub):
    hub.repos[REPO].files[NAME] = b"GGUF" + bytes(100)
    with pytest.raises(Malformed):
        pull.pull(f"hf:{REPO}")
    assert kept() == []


# --- names that are taken ------------------------------------------------------


def test_a_name_that_another_file_has_is_not_taken_from_it(hub):
    models = store.writable("models")
    (models / NAME).write_bytes(OTHER_GGUF)
    path = pull.pull(f"hf:{REPO}")
    assert path.name == f"some-one--Tiny-1B-GGUF--{NAME}" and (models / NAME).read_bytes() == OTHER_GGUF
    assert store.resolve(f"hf:{REPO}") == path == pull.pull(f"hf:{REPO}")
    path.write_bytes(OTHER_GGUF)
    assert "kinetic rm" in refused(f"hf:{REPO}", FileProblem, "NAME_TAKEN")


def test_only_a_file_of_the_catalog_gets_its_name(hub):
    name = store.catalog()["smollm2"]["file"]
    hub.repos[REPO] = Repo({name: GGUF})
    assert pull.pull(f"hf:{REPO}").name == f"some-one--Tiny-1B-GGUF--{name}"
    with pytest.raises(FileProblem):
        store.resolve("smollm2")


def test_a_file_that_the_catalog_knows_goes_by_its_name(hub, monkeypatch):
    entry = {"file": "known.gguf", "size": len(GGUF), "sha256": sha256(GGUF), "blake3": "", "title": "", "license": ""}
    monkeypatch.setattr(store, "catalog", lambda: {"known": entry})
    lines: list[str] = []
    assert pull.pull(f"hf:{REPO}", say=lines.append).name == "known.gguf"
    assert lines[-1] == "Run it with: kinetic run known"


# --- what breaks ---------------------------------------------------------------


def test_a_connection_that_drops_is_taken_up_again(hub, small_pieces):
    hub.drops = [2500, 3000]
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF
    assert hub.ranges() == ["", "bytes=2000-", "bytes=5000-"]


def test_a_pull_that_broke_off_is_continued_by_the_next(hub, small_pieces):
    hub.drops = [2500] + [0] * 20
    text = refused(f"hf:{REPO}", NetworkError, "BROKEN_OFF")
    assert "are kept" in text and f"kinetic pull hf:{REPO}" in text
    assert kept() == [f".unfinished/{sha256(GGUF)}"] and store.pulled() == []
    del hub.drops[:], hub.requests[:]
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF
    assert hub.ranges() == ["bytes=2000-"] and kept() == [NAME]
    assert not (store.folder("models") / ".unfinished").exists()


def test_an_interrupt_leaves_what_came(hub, small_pieces):
    def interrupt(done: int, total: int) -> None:
        if done >= 2000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull.pull(f"hf:{REPO}", on_fetch=interrupt)
    assert (store.folder("models") / ".unfinished" / sha256(GGUF)).read_bytes() == GGUF[:2000]
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF and hub.ranges() == ["", "bytes=2000-"]


def test_whole_parts_are_not_fetched_again(hub, small_pieces):
    parts = {f"s-0000{number}-of-00002.gguf": small_gguf(f"blk.{number}.x") for number in (1, 2)}
    hub.repos[REPO] = Repo(parts)
    hub.drops = [10**9] + [0] * 20
    refused(f"hf:{REPO}", NetworkError, "BROKEN_OFF")
    del hub.drops[:], hub.requests[:]
    pull.pull(f"hf:{REPO}")
    assert hub.ranges() == [""] and kept() == sorted(parts)


def test_a_server_that_ignores_ranges_sends_it_all(hub, small_pieces):
    part = store.writable("models") / ".unfinished" / sha256(GGUF)
    part.parent.mkdir()
    part.write_bytes(b"x" * 3000)
    hub.ignores_ranges = True
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF


@pytest.mark.parametrize("begun", [b"x" * 3000, b"x" * len(GGUF), GGUF + b"x"])
def test_unfinished_bytes_that_are_wrong(hub, begun):
    part = store.writable("models") / ".unfinished" / sha256(GGUF)
    part.parent.mkdir()
    part.write_bytes(begun)
    if len(begun) <= len(GGUF):
        refused(f"hf:{REPO}", NetworkError, "DIGEST_MISMATCH")
        assert kept() == []
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF


def test_bytes_of_another_hash_are_not_kept(hub):
    hub.repos[REPO].lies[NAME] = "0" * 64
    assert NAME in refused(f"hf:{REPO}", NetworkError, "DIGEST_MISMATCH")
    assert kept() == []


def test_a_hash_that_is_none_is_as_no_file(hub):
    hub.repos[REPO].lies[NAME] = "../../x"
    refused(f"hf:{REPO}", UsageError, "NO_MODELS")


def test_two_pulls_of_one_file_do_not_mix(hub):
    part = store.writable("models") / ".unfinished" / sha256(GGUF)
    part.parent.mkdir()
    with part.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(f"hf:{REPO}", FileProblem, "BUSY")


def test_no_room(hub, monkeypatch):
    usage = pulling.shutil.disk_usage("/")
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda path: usage._replace(free=len(GGUF) - 1))
    refused(f"hf:{REPO}", FileProblem, "DISK_FULL")
    assert kept() == [] and hub.ranges() == []


def test_a_disk_that_fills_up(hub, monkeypatch):
    def full(self: object, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pulling._Counted, "write", full)
    refused(f"hf:{REPO}", FileProblem, "DISK_FULL")


# --- who may ---------------------------------------------------------------------


def test_the_token_is_for_the_hub_and_not_for_its_cdn(hub, monkeypatch):
    hub.repos[REPO].token = "hf_secret"
    assert "HF_TOKEN" in refused(f"hf:{REPO}", NetworkError, "NO_REPO")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF
    sent = {path.split("/")[1]: headers.get("authorization") for _, path, headers in hub.requests}
    assert sent == {"api": "Bearer hf_secret", "some-one": "Bearer hf_secret", "cdn": None}
    encodings = {headers["accept-encoding"] for _, path, headers in hub.requests if path.startswith("/cdn/")}
    assert encodings == {"identity"}, "a file's length is that of its own bytes"


def test_a_login_of_the_hubs_own_client_is_used(hub, tmp_path):
    hub.repos[REPO].token = "hf_secret"
    (tmp_path / "token").write_text("hf_secret")
    assert pull.pull(f"hf:{REPO}").read_bytes() == GGUF


def test_a_gated_repository(hub):
    hub.repos[REPO].gated = True
    text = refused(f"hf:{REPO}", LicenseNotAccepted, "GATED")
    assert f"{hub.endpoint}/{REPO}" in text and "HF_TOKEN" in text and kept() == []


@pytest.mark.parametrize(
    ("status", "name"),
    [(403, "REFUSED"), (404, "GONE"), (400, "HUB_ERROR"), (418, "HUB_ERROR"), (500, "HUB_ERROR")],
)
def test_other_answers(hub, status, name):
    hub.status = status
    refused(f"hf:{REPO}", NetworkError, name)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"id": 1}', b'{"id": "a/b", "siblings": [{}]}'])
def test_an_address_that_is_no_hub(hub, body):
    hub.status, hub.body = 200, body
    with pytest.raises(NetworkError) as caught:
        pull.pull(f"hf:{REPO}")
    assert caught.value.name in ("NO_HUB", "NOT_A_HUB") and "HF_ENDPOINT" in str(caught.value)


def test_no_network(hub, monkeypatch):
    path = pull.pull(f"hf:{REPO}")
    monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")
    assert "check the network" in refused("hf:a/b", NetworkError, "NO_HUB")
    assert str(path) in refused(f"hf:{REPO}", NetworkError, "NO_HUB"), "what is here already is named"


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    text = refused(f"hf:{REPO}", UsageError, "NO_HUB_LIBRARY")
    assert "pip install 'kinetic-engine[hub]'" in text


def test_a_models_folder_that_cannot_be_written(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "file" / "home"))
    refused(f"hf:{REPO}", FileProblem, "READ_ONLY")


# --- removing --------------------------------------------------------------------


def test_remove_by_the_name_of_the_hub(hub):
    hub.repos[REPO] = Repo({f"s-0000{number}-of-00002.gguf": small_gguf(f"blk.{number}.x") for number in (1, 2)})
    pull.pull(f"hf:{REPO}")
    files = pull.owned(f"hf:{REPO}")
    assert [path.name for path in files] == kept()
    assert pull.remove(files) == sum(map(len, hub.repos[REPO].files.values())) and kept() == []
    assert provenance.origins(store.folder("models")) == {} and pull.owned(f"hf:{REPO}") == []


def test_another_file_under_a_forgotten_name_is_not_taken_for_it(hub, tmp_path):
    path = pull.pull(f"hf:{REPO}")
    path.unlink()
    (tmp_path / NAME).write_bytes(OTHER_GGUF)
    assert pull.pull(str(tmp_path / NAME)) == Path(path)
    with pytest.raises(FileProblem):
        store.resolve(f"hf:{REPO}")
