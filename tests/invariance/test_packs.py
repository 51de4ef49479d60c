"""Packed weights that were kept: cold, warm, damaged, stale or somebody else's, every logit has the same bits."""

from __future__ import annotations

import os
import shutil
import stat
import threading

import numpy as np
import pytest

from kinetic.backends.cpu import packs as pack_files
from kinetic.backends.cpu import target
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.weights import WeightStore
from kinetic.formats import RUNNABLE
from ktc.inputs import ModelFile
from ktc.writer import write_bundle
from tests.support.blocks import FORMATS, random_weight
from tests.support.packs import Packs
from tests.support.tiny_models import write_tiny_llama
from tests.support.whole_models import WRITERS

pytestmark = pytest.mark.skipif(not pack_files.IS_POSSIBLE, reason="packs are not kept on this system")


@pytest.fixture
def packs(tmp_path, monkeypatch):
    return Packs(tmp_path / "home", monkeypatch)


@pytest.fixture
def model(tmp_path):
    return write_tiny_llama(tmp_path / "model.gguf", seed=1)


@pytest.fixture
def expected(packs, model):
    """The logits; afterwards there is one pack."""
    found = packs.logits(model, pack_cache=False, is_warm=False)
    assert packs.files == []
    assert same(packs.logits(model, is_warm=False), found)
    assert len(packs.files) == 1
    return found


def same(found, expected):
    return found.tobytes() == expected.tobytes()


# --- cold and warm ---


@pytest.mark.parametrize("kind", [*FORMATS, "tied"])
def test_every_format(packs, tmp_path, kind):
    types, path = {"": kind, "token_embd": kind}, tmp_path / "model.gguf"
    write_tiny_llama(path, types={"": "Q8_0"}, tied=True) if kind == "tied" else write_tiny_llama(path, types=types)
    expected = packs.logits(path, pack_cache=False)
    for is_warm, threads in ((False, 2), (True, 2), (True, 1), (True, 3)):
        assert same(packs.logits(path, is_warm=is_warm, threads=threads), expected)


@pytest.mark.parametrize("name", WRITERS)
def test_every_family(packs, tmp_path, name):
    path = tmp_path / "model.gguf"
    WRITERS[name](path)
    expected = packs.logits(path, pack_cache=False)
    assert same(packs.logits(path, is_warm=False, threads=1), expected)
    assert same(packs.logits(path, is_warm=True), expected)


def test_a_bundle_and_a_copy_share_the_pack(packs, model, expected, tmp_path):
    copy, bundle = tmp_path / "copy.gguf", tmp_path / "model.ktc"
    shutil.copy(model, copy)
    with ModelFile(model) as source:
        write_bundle(bundle, source, name="model", file="model.gguf")
    for path in (copy, bundle):
        assert same(packs.logits(path, is_warm=False), expected)  # what is in it isn't known yet
        assert same(packs.logits(path, is_warm=True), expected)
    assert len(packs.files) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_packed_bytes_are_those_of_every_instruction_set(name):
    weight, found = random_weight("w", name, 37, 768, seed=3), set()
    for isa in target.available():
        store = WeightStore(Kernels(isa, RUNNABLE), [weight], 2)
        found.add(store.packed(weight).data.tobytes())
        store.close()
    assert len(found) == 1


# --- damaged ---


def places(size):
    """An offset in each part of a pack: seal, key, digests of the first piece and the last, data."""
    pieces = (size - 4096) // pack_files.PIECE
    return {
        "seal": 0, "key": 32, "first digest": 64, "last digest": 64 + 32 * pieces - 1, "first byte": 4096,
        "middle": size // 2, "end of a piece": 4096 + pack_files.PIECE - 1, "last byte": size - 1,
    }  # fmt: skip


@pytest.mark.parametrize("place", places(1 << 20))
def test_a_poisoned_pack_is_thrown_away(packs, model, expected, place):
    (path,) = packs.files
    good = path.read_bytes()
    at = places(len(good))[place]
    path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
    assert same(packs.logits(model, is_warm=False), expected)
    assert path.read_bytes() == good
    assert same(packs.logits(model, is_warm=True), expected)


def test_nothing_of_a_poisoned_pack_gets_into_the_next(packs, tmp_path):
    """Rows beyond a matrix are zeros that packing leaves as they are."""
    path = write_tiny_llama(tmp_path / "padded.gguf", types={"": "Q8_0"})
    packs.logits(path, is_warm=False)
    (pack,) = packs.files
    good = pack.read_bytes()
    assert good[-1] == 0
    pack.write_bytes(good[:-1] + b"\x01")
    packs.logits(path, is_warm=False)
    assert pack.read_bytes() == good


@pytest.mark.parametrize("length", [0, 31, 64, 4095, 4096, 4097, -1, "longer"])
def test_a_pack_of_another_length_is_thrown_away(packs, model, expected, length):
    (path,) = packs.files
    good = path.read_bytes()
    path.write_bytes(good + b"\0" if length == "longer" else good[:length])
    assert same(packs.logits(model, is_warm=False), expected)
    assert path.read_bytes() == good


def test_a_sealed_pack_of_another_model_is_refused(packs, model, expected, tmp_path):
    """Whole and sound, but under the wrong name."""
    (path,) = packs.files
    other = write_tiny_llama(tmp_path / "other.gguf", seed=2)
    assert not same(packs.logits(other, is_warm=False), expected)
    (others,) = [file for file in packs.files if file != path]
    os.replace(others, path)
    assert same(packs.logits(model, is_warm=False), expected)


# --- stale ---


def test_a_changed_model_has_another_pack(packs, model, expected):
    """Also where the file has its old size and its old time of writing."""
    status = model.stat()
    write_tiny_llama(model, seed=2)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert model.stat().st_size == status.st_size
    found = packs.logits(model, is_warm=False)
    assert not same(found, expected)
    assert same(packs.logits(model, is_warm=True), found)
    write_tiny_llama(model, seed=1)
    assert same(packs.logits(model), expected)


def test_a_file_that_was_just_written_has_none(packs, model, monkeypatch):
    monkeypatch.setattr("kinetic.store.RACY_NS", 1 << 62)
    packs.logits(model, is_warm=False)
    assert packs.files == []


@pytest.mark.parametrize("source", ["layout.py", "packing.py", "emitted.py", "q4_k.py", "version"])
def test_another_packing_has_another_pack(packs, model, expected, monkeypatch, source):
    read = type(model).read_bytes
    if source == "version":
        monkeypatch.setattr(pack_files, "VERSION", "kinetic pack 0")
    monkeypatch.setattr(type(model), "read_bytes", lambda path: read(path) + b" " * (path.name == source))
    pack_files.packing_digest.cache_clear()
    try:
        assert same(packs.logits(model, is_warm=False), expected)
        assert len(packs.files) == 2
    finally:
        pack_files.packing_digest.cache_clear()


def test_other_kernels_keep_the_pack(monkeypatch, tmp_path):
    before, read = pack_files.packing_digest.__wrapped__(), type(tmp_path).read_bytes
    for name in ("attention.py", "tiles.py", "plan.py", "core_ops.py", "packs.py"):
        monkeypatch.setattr(
            type(tmp_path), "read_bytes", lambda path, name=name: read(path) + b" " * (path.name == name)
        )
        assert pack_files.packing_digest.__wrapped__() == before


# --- somebody else's ---


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_pack_that_others_can_write_to_is_thrown_away(packs, model, expected, mode):
    (path,) = packs.files
    path.chmod(mode)
    assert same(packs.logits(model, is_warm=False), expected)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_pack_of_another_user_is_thrown_away(packs, model, expected):
    (path,) = packs.files
    os.chown(path, 12345, -1)
    assert same(packs.logits(model, is_warm=False), expected)
    assert path.stat().st_uid == 0


def test_a_folder_that_others_can_write_to_is_not_used(packs, model, expected):
    packs.folder.chmod(0o777)
    assert same(packs.logits(model, is_warm=False), expected)
    packs.files[0].unlink()
    assert same(packs.logits(model, is_warm=False), expected)
    assert packs.files == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(packs, model, expected, tmp_path, kind):
    (path,) = packs.files
    os.replace(path, tmp_path / "elsewhere")
    {"link": lambda: path.symlink_to(tmp_path / "elsewhere"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
        kind
    ]()
    assert same(packs.logits(model, is_warm=False), expected)
    assert same(packs.logits(model, is_warm=kind != "folder"), expected)


# --- together ---


def test_removing_packs_while_others_read_and_write_them(packs, model, expected):
    is_over = threading.Event()

    def remove() -> None:
        while not is_over.is_set():
            shutil.rmtree(packs.folder, ignore_errors=True)

    others = [threading.Thread(target=remove)]
    found: list[np.ndarray] = []
    others += [threading.Thread(target=lambda: found.extend(packs.logits(model) for _ in range(6))) for _ in range(2)]
    for thread in others:
        thread.start()
    for thread in others[1:]:
        thread.join()
    is_over.set()
    others[0].join()
    assert len(found) == 12 and all(same(one, expected) for one in found)
