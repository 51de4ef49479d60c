"""State folders, names of models, and the digest cache."""

import hashlib
import os
from pathlib import Path

import pytest
from blake3 import blake3

from kinetic import store
from kinetic.errors import FileProblem


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def old_file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def no_race(monkeypatch):
    """Treat fresh files as if they had been at rest for a while."""
    monkeypatch.setattr(store, "RACY_NS", -(10**18))


# --- folders ---


def test_kinetic_home_holds_every_folder(home):
    assert {store.folder(kind) for kind in store.FOLDERS} == {home / kind for kind in store.FOLDERS}
    assert not home.exists(), "looking up must create nothing"


def test_xdg_folders_when_there_is_no_kinetic_home(monkeypatch):
    monkeypatch.delenv("KINETIC_HOME")
    monkeypatch.setenv("HOME", "/u")
    monkeypatch.setenv("XDG_DATA_HOME", "/d")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert store.folder("models") == Path("/d/kinetic/models")
    assert store.folder("digests") == Path("/u/.cache/kinetic/digests")
    assert store.folder("keys") == Path("/u/.config/kinetic/keys")


def test_folders_are_private(home):
    made = store.writable("keys")
    assert made == home / "keys"
    assert [path.stat().st_mode & 0o777 for path in (home, made)] == [0o700, 0o700]


def test_unwritable_home_degrades(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "file" / "home"))
    assert store.writable("digests") is None
    assert store.writable("models") is None
    model = old_file(tmp_path / "m.gguf", b"GGUF")
    assert store.digests(model).size == 4, "hashing works without a cache"
    assert store.pulled() == []


# --- names ---


def test_a_name_mistyped_is_answered_with_the_one_meant():
    for name, hint in [("smolm2", "(did you mean smollm2?)"), ("abacus", "")]:
        with pytest.raises(FileProblem) as caught:
            store.resolve(name)
        assert caught.value.name == "NO_MODEL" and hint in str(caught.value)
        assert ("did you mean" in str(caught.value)) == bool(hint)


def test_a_path_wins_over_names(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").write_bytes(b"GGUF")
    old_file(home / "models" / store.catalog()["smollm2"]["file"], b"GGUF")
    assert store.resolve("smollm2") == Path("smollm2")


def test_catalog_name_and_file_name_resolve_to_the_pulled_file(home):
    file = old_file(home / "models" / store.catalog()["smollm2"]["file"], b"GGUF")
    mine = old_file(home / "models" / "mine.v1.gguf", b"GGUF")
    assert store.resolve("smollm2") == store.resolve(file.name) == store.resolve(file.stem) == file
    assert store.resolve("mine.v1") == store.resolve("mine.v1.gguf") == mine


def test_non_ascii_paths_open(tmp_path):
    model = old_file(tmp_path / "Загрузки Maëlys" / "моделька.gguf", b"GGUF")
    assert store.resolve(str(model)) == model


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smollm2", "NOT_PULLED"),
        ("nothing", "NO_MODEL"),
        ("", "NO_MODEL"),
        ("nothing.gguf", "NO_FILE"),
        ("./smollm2", "NO_FILE"),
        ("../models/x", "NO_FILE"),
    ],
)
def test_unknown_models_say_what_to_do(name, reason):
    with pytest.raises(FileProblem) as caught:
        store.resolve(name)
    assert caught.value.name == reason


def test_a_folder_is_named_as_such(tmp_path):
    with pytest.raises(FileProblem) as caught:
        store.resolve(tmp_path)
    assert caught.value.name == "IS_FOLDER"


def test_a_name_never_leaves_the_models_folder(home):
    old_file(home / "secret.gguf", b"GGUF")
    (home / "models").mkdir()
    with pytest.raises(FileProblem):
        store.resolve("../secret")


def test_pulled_lists_catalog_names_and_first_shards_only(home):
    shards = ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
    for name in (store.catalog()["smollm2"]["file"], *shards, "best-of-all.gguf"):
        old_file(home / "models" / name, b"GGUF")
    old_file(home / "models" / "notes.txt", b"")
    assert [model.name for model in store.pulled()] == ["b-00001-of-00002", "best-of-all", "smollm2"]


# --- digests ---


@pytest.mark.parametrize("size", [0, 1, store.CHUNK - 1, store.CHUNK, store.CHUNK + 1])
def test_digests_are_the_plain_digests_of_the_whole_file(tmp_path, size):
    data = (b"%d," % size) * size
    data = data[:size]
    file = old_file(tmp_path / "m.gguf", data)
    seen = []
    assert store.digests(file, progress=lambda done, total: seen.append((done, total))) == store.Digests(
        size, blake3(data).hexdigest(), hashlib.sha256(data).hexdigest()
    )
    assert seen[-1:] == ([(size, size)] if size else [])


def count_hashing(monkeypatch):
    calls = []
    real = store.hash_stream
    monkeypatch.setattr(store, "hash_stream", lambda *args: calls.append(1) or real(*args))
    return calls


def test_cache_serves_an_untouched_file_and_rehash_ignores_it(tmp_path, monkeypatch):
    no_race(monkeypatch)
    file = old_file(tmp_path / "m.gguf", b"one")
    first = store.digests(file)
    calls = count_hashing(monkeypatch)
    assert store.digests(file) == first and not calls
    assert store.digests(file, rehash=True) == first and len(calls) == 1


def test_cache_notices_an_edit_that_keeps_size_and_mtime(tmp_path, monkeypatch):
    no_race(monkeypatch)
    file = old_file(tmp_path / "m.gguf", b"one")
    stat = file.stat()
    first = store.digests(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    assert store.digests(file) != first, "ctime tells"


def test_a_file_changed_just_now_is_hashed_again_but_found(tmp_path, monkeypatch):
    file = old_file(tmp_path / "m.gguf", b"one")
    found = store.digests(file)
    calls = count_hashing(monkeypatch)
    assert store.digests(file) == found and len(calls) == 1
    assert store.find_by_digest(found) == file


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b'{"stamp": 1}', b"\xff", b'{"stamp":[],"blake3":1,"sha256":"","path":""}']
)
def test_a_damaged_cache_entry_is_ignored(tmp_path, home, monkeypatch, junk):
    no_race(monkeypatch)
    file = old_file(tmp_path / "m.gguf", b"one")
    first = store.digests(file)
    (entry,) = (home / "digests").iterdir()
    entry.write_bytes(junk)
    assert store.digests(file) == first


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    file = old_file(tmp_path / "m.gguf", b"one")
    real = store.hash_stream

    def edit_meanwhile(*args):
        result = real(*args)
        file.write_bytes(b"longer")
        return result

    monkeypatch.setattr(store, "hash_stream", edit_meanwhile)
    with pytest.raises(FileProblem) as caught:
        store.digests(file)
    assert caught.value.name == "FILE_CHANGED"


def test_find_by_digest_looks_at_pulled_models_and_at_files_hashed_before(tmp_path, home, monkeypatch):
    no_race(monkeypatch)
    pulled = old_file(home / "models" / "a.gguf", b"GGUF a")
    elsewhere = old_file(tmp_path / "b.gguf", b"GGUF b")
    wanted = store.digests(elsewhere)
    assert store.find_by_digest(store.hash_stream(iter([b"GGUF a"]), 6)) == pulled
    assert store.find_by_digest(wanted) == elsewhere
    elsewhere.write_bytes(b"GGUF c")
    assert store.find_by_digest(wanted) is None
