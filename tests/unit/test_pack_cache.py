"""The folder of packs: how much it holds, what goes first, and what happens where nothing can be written."""

from __future__ import annotations

import errno
import os

import pytest

from kinetic import packs as user_packs
from kinetic.api import Model
from kinetic.backends.cpu import packs as pack_files
from kinetic.errors import UnsupportedModel, UsageError
from kinetic.loader import open_model_file
from tests.support.packs import TOKENS, Packs
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.skipif(not pack_files.IS_POSSIBLE, reason="packs are not kept on this system")


@pytest.fixture
def packs(tmp_path, monkeypatch):
    return Packs(tmp_path / "home", monkeypatch)


@pytest.fixture
def models(tmp_path):
    return [write_tiny_llama(tmp_path / f"{seed}.gguf", seed=seed, layers=1) for seed in range(3)]


def limit_of(path):
    with open_model_file(path) as loaded:
        cache = user_packs.cache_of(loaded, loaded.identity)
    return cache and cache.limit


# --- size ---


def test_the_packs_used_last_stay(packs, models, monkeypatch):
    packs.logits(models[0], is_warm=False)
    size = packs.files[0].stat().st_size
    monkeypatch.setenv("KINETIC_PACK_CACHE", str(2 * size))
    packs.logits(models[1], is_warm=False)
    os.utime(packs.files[0], ns=(1, 1)), os.utime(packs.files[1], ns=(1, 1))
    packs.logits(models[0], is_warm=True)
    packs.logits(models[2], is_warm=False)
    assert len(packs.files) == 2
    for model in (models[0], models[2]):
        packs.logits(model, is_warm=True)
    packs.logits(models[1], is_warm=False)


def test_a_pack_that_does_not_fit_is_not_written(packs, models, monkeypatch):
    packs.logits(models[0], is_warm=False)
    size = packs.files[0].stat().st_size
    monkeypatch.setenv("KINETIC_PACK_CACHE", str(size - 1))
    packs.logits(models[1], is_warm=False)
    packs.logits(models[1], is_warm=False)
    packs.logits(models[0], is_warm=True)  # what is there is of use nevertheless


@pytest.mark.parametrize("text, size", [("1", 1), ("3K", 3 << 10), ("5G", 5 << 30), ("0", None), ("0G", None)])
def test_the_environment_gives_the_size(packs, models, monkeypatch, text, size):
    monkeypatch.setenv("KINETIC_PACK_CACHE", text)
    assert limit_of(models[0]) == size


def test_by_default_it_is_a_tenth_of_what_is_free(packs, models, monkeypatch):
    monkeypatch.setenv("KINETIC_PACK_CACHE", "")
    free = 50 << 30
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert limit_of(models[0]) == 5 << 30
    packs.folder.mkdir(parents=True, exist_ok=True)
    (packs.folder / "a.pack").write_bytes(bytes(1000))
    assert limit_of(models[0]) == (free + 1000) // 10
    free = 500 << 30
    assert limit_of(models[0]) == 20 << 30


@pytest.mark.parametrize("text", ["-1", "5g", "lots", "1.5G", "٣", " 5", "1e9"])
def test_a_size_that_is_none_is_refused(packs, models, monkeypatch, text):
    monkeypatch.setenv("KINETIC_PACK_CACHE", text)
    with pytest.raises(UsageError, match="KINETIC_PACK_CACHE") as error:
        Model(models[0])
    assert error.value.name == "BAD_SIZE" and "\n" not in str(error.value)


# --- what can go wrong ---


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_changes_nothing(packs, models, monkeypatch, problem):
    expected = packs.logits(models[0], pack_cache=False)
    write, count = os.pwrite, 0

    def fail(*arguments):
        nonlocal count
        count += 1
        if count > 3:
            raise OSError(problem, os.strerror(problem))
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", fail)
    assert (packs.logits(models[0], is_warm=False) == expected).all()
    assert count == 4 and packs.files == []


def test_a_disk_that_cannot_be_read_changes_nothing(packs, models, monkeypatch):
    expected = packs.logits(models[0], is_warm=False)

    def fail(*arguments):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "preadv", fail)
    assert (packs.logits(models[0], is_warm=False) == expected).all()


def test_a_home_that_cannot_be_written(packs, models, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("KINETIC_PACK_CACHE", "")
    packs.logits(models[0], is_warm=False)
    monkeypatch.setenv("KINETIC_PACK_CACHE", "1G")
    packs.logits(models[0], is_warm=False)


def test_packs_in_a_home_that_is_read_only_are_of_use(packs, models, monkeypatch):
    packs.logits(models[0], is_warm=False)
    monkeypatch.setattr("kinetic.store.writable", lambda kind: None)
    packs.logits(models[0], is_warm=True)


def test_a_model_with_a_bad_scale_has_no_pack(packs, tmp_path):
    """Its weights are not checked again once they are in a pack, so none may be written before they were."""
    for name in ("output.weight", "token_embd.weight"):
        path = write_tiny_llama(tmp_path / "bad.gguf", types={"": "Q8_0"}, layers=1)
        with open_model_file(path) as loaded:
            tensor = loaded.gguf.tensors[name]
        content = bytearray(path.read_bytes())
        content[tensor.offset + 1] = 0x7C  # the first block's scale becomes infinite
        path.write_bytes(content)
        for _ in range(2):
            with pytest.raises(UnsupportedModel, match=name):
                Model(path)
        assert packs.files == []


def test_a_file_changed_during_the_answer_leaves_no_pack(packs, models):
    with Model(models[0]) as model:
        os.utime(models[0])
        model._engine.logits(TOKENS)
    assert packs.files == []


@pytest.mark.parametrize("is_dated_back", [False, True])
def test_a_file_rewritten_while_it_is_packed_leaves_no_pack(packs, models, is_dated_back):
    """Its digest is known, and is not that of what is packed: such a pack would be found when the file is back."""
    with Model(models[0]) as model:
        known = model.identity
        model._engine.logits(TOKENS)
    (kept,) = packs.files
    kept.unlink()
    first, second = models[0].read_bytes(), models[1].read_bytes()
    assert len(first) == len(second)
    times = models[0].stat()
    loaded = open_model_file(models[0])
    models[0].write_bytes(second)  # the same inode
    if is_dated_back:
        os.utime(models[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    with Model(loaded) as model:
        model._engine.logits(TOKENS)
    assert packs.files == []
    assert known.files[0].blake3


def test_what_was_begun_is_written_before_the_end(packs, models, monkeypatch):
    """And if the program is told to end, it isn't, and nothing of it stays."""
    entered = 0
    write = pack_files._write_at

    def slowly(*arguments):
        nonlocal entered
        entered += 1
        pack_files.threading.Event().wait(0.05)
        write(*arguments)

    monkeypatch.setattr(pack_files, "_write_at", slowly)
    with pytest.raises(KeyboardInterrupt), Model(models[0]) as model:
        model._engine.logits(TOKENS)
        raise KeyboardInterrupt
    assert packs.files == []
    packs.logits(models[0], is_warm=False)
    assert len(packs.files) == 1 and entered > 3


def test_what_dead_processes_left_goes(packs, models):
    packs.folder.mkdir(parents=True)
    old, new = packs.folder / "tmp-old", packs.folder / "tmp-new"
    old.touch(), new.touch()
    os.utime(old, (1, 1))
    packs.logits(models[0], is_warm=False)
    assert new in packs.files and old not in packs.files


def test_a_model_that_answers_nothing_leaves_no_pack(packs, models):
    Model(models[0]).close()
    assert packs.files == []


# --- the user's word ---


def test_packs_go_with_their_model(packs, models):
    packs.logits(models[0], is_warm=False), packs.logits(models[1], is_warm=False)
    found = user_packs.of_files([models[0]])
    assert len(found) == 1 and set(found) < set(packs.files)
    size = found[0].stat().st_size
    assert user_packs.remove([*found, packs.folder / "none"]) == size
    packs.logits(models[1], is_warm=True), packs.logits(models[0], is_warm=False)
    models[0].write_bytes(models[1].read_bytes())
    assert user_packs.of_files([models[0]]) == [] == user_packs.of_files([models[0].with_name("none")])
