"""Models in bundles, opened: the same bytes as the bare file, and no byte used that was not checked."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kinetic import store
from kinetic.api.bundle import pack
from kinetic.errors import FileProblem, KineticError, Malformed, MalformedGguf, UsageError
from kinetic.gguf import Gguf
from kinetic.loader import LoadedBundle, LoadedFile, open_model_file
from ktc.layout import MAGIC
from tests.support.gguf_writer import CODES, GgufWriter
from tests.support.hand_made_bundle import ARCHITECTURE, MODEL, TEMPLATE, TOKENS, bundle, gguf, record, section

LEAF = 1 << 20
RECORDS = (TOKENS, ARCHITECTURE, TEMPLATE, MODEL)
PARTS = [section("gguf", gguf(RECORDS)), section("tokenizer", MODEL + TOKENS), section("template", TEMPLATE)]
NAMES = ("first", "second", "third")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def bare(tmp_path) -> Path:
    """Three tensors of 5 MiB each, and so 16 leaves, of which the first is read when it is opened."""
    writer = GgufWriter().key("general.architecture", "llama").key("tokenizer.ggml.tokens", ["a", "b"])
    for seed, name in enumerate(NAMES):
        writer.tensor(name, np.random.default_rng(seed).random((10 * 1024, 128), np.float32))
    return writer.write(tmp_path / "bare.gguf")


@pytest.fixture
def packed(bare, tmp_path) -> Path:
    pack(bare, tmp_path / "a.ktc", leaves=True)
    return tmp_path / "a.ktc"


def flip(path: Path, at: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bit]))


def place(path: Path, name: str, inside: int = 0) -> int:
    """Where in the bundle's file a byte of a tensor stands."""
    with open_model_file(path, check="none") as loaded:
        assert isinstance(loaded, LoadedBundle)
        return loaded.bundle.gguf.offset + loaded.gguf.tensors[name].offset + inside


def refusal(kind: type[KineticError], name: str, path: Path, **options) -> str:
    with pytest.raises(kind) as caught:
        open_model_file(path, **options).close()
    assert caught.value.name == name
    return str(caught.value)


def test_a_bundle_begins_as_the_format_says():
    assert store.BUNDLE_MAGIC == MAGIC


@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_the_model_in_a_bundle_is_the_bare_one(bare, packed, check):
    with open_model_file(bare) as one, open_model_file(packed, check=check) as other:
        assert one.gguf.metadata == other.gguf.metadata and one.gguf.tensors == other.gguf.tensors
        assert one.gguf.size == other.gguf.size == bare.stat().st_size
        for name in NAMES:
            assert np.array_equal(one.weights[name].data, other.weights[name].data)
        assert (one.bundle_digest, other.bundle_digest) == ("", other.bundle.manifest_digest)


def test_what_a_file_is_says_its_beginning_and_not_its_name(bare, packed, tmp_path):
    bare.rename(tmp_path / "x.ktc")
    packed.rename(tmp_path / "y.gguf")
    with open_model_file(tmp_path / "x.ktc") as one, open_model_file(tmp_path / "y.gguf") as other:
        assert type(one) is LoadedFile and type(other) is LoadedBundle
    (tmp_path / "z.ktc").write_bytes(b"\x89KTC")
    refusal(MalformedGguf, "BAD_MAGIC", tmp_path / "z.ktc")
    refusal(FileProblem, "FILE_NOT_FOUND", tmp_path / "missing.ktc")


def test_there_is_no_other_check(packed):
    refusal(UsageError, "NO_CHECK", packed, check="some")


# --- damage ---


def test_lazily_a_damaged_leaf_is_found_when_it_is_used(packed):
    flip(packed, place(packed, "third", 1_000_000))
    with open_model_file(packed) as loaded:
        assert loaded.weights["first"].data.any()
        with pytest.raises(Malformed, match=r"a\.ktc: leaf 10 of section 'gguf'") as caught:
            loaded.weights["third"]
        assert (caught.value.name, caught.value.exit_code) == ("LEAF_DIGEST", 11)
        with pytest.raises(Malformed):  # and again, not only the first time
            loaded.weights["third"]


@pytest.mark.parametrize("at", [0, 4, 30, 60])
def test_lazily_a_damaged_header_is_found_when_the_bundle_is_opened(packed, at):
    with open_model_file(packed) as loaded:
        begin = loaded.bundle.gguf.offset
    flip(packed, begin + at)
    assert "leaf 0 of section 'gguf'" in refusal(Malformed, "LEAF_DIGEST", packed)


def test_all_before_the_first_tensor_is_checked(tmp_path):
    """More than a leaf of keys, and one bit of a tensor's name behind them."""
    writer = GgufWriter().key("general.architecture", "llama").key("filler", "x" * (LEAF + 1))
    writer.tensor("only", np.ones(300_000, np.float32)).write(tmp_path / "bare.gguf")
    pack(tmp_path / "bare.gguf", tmp_path / "a.ktc", leaves=True)
    with open_model_file(tmp_path / "a.ktc") as loaded:
        assert loaded.bundle.leaves.checked == 2 and loaded.bundle.leaves.count == 3
        begin = loaded.bundle.gguf.offset
    flip(tmp_path / "a.ktc", begin + (tmp_path / "bare.gguf").read_bytes().index(b"only"))
    assert "leaf 1 of" in refusal(Malformed, "LEAF_DIGEST", tmp_path / "a.ktc")


@pytest.mark.parametrize("leaves", [True, False])
def test_in_full_damage_is_found_before_anything(bare, tmp_path, leaves):
    pack(bare, tmp_path / "a.ktc", leaves=leaves)
    flip(tmp_path / "a.ktc", place(tmp_path / "a.ktc", "third", 4_500_000))
    name = "LEAF_DIGEST" if leaves else "SECTION_DIGEST"
    refusal(Malformed, name, tmp_path / "a.ktc", check="full")
    if not leaves:
        refusal(Malformed, name, tmp_path / "a.ktc", check="lazy")  # lazily there is nothing to check by


def test_with_no_check_weights_are_as_they_are(packed):
    at = place(packed, "third", 1_000_000)
    flip(packed, at)
    with open_model_file(packed, check="none") as loaded:
        assert loaded.gguf.data("third")[1_000_000] == packed.read_bytes()[at]
        assert loaded.about == "unsigned; its weights are not checked"


@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_what_says_where_everything_is_is_always_checked(packed, check):
    flip(packed, 100)
    refusal(Malformed, "MANIFEST_DIGEST", packed, check=check)


@pytest.mark.parametrize(("kind", "name"), [("tokenizer", "TOKENIZER_MISMATCH"), ("template", "TEMPLATE_MISMATCH")])
@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_a_tokenizer_or_template_of_another_model_is_refused(tmp_path, kind, name, check):
    parts = [section(kind, b"another") if entry["kind"] == kind else (entry, data) for entry, data in PARTS]
    (tmp_path / "a.ktc").write_bytes(bundle(parts))
    refusal(Malformed, name, tmp_path / "a.ktc", check=check)


@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_a_broken_model_in_a_sound_bundle_is_refused_as_a_bare_one_is(tmp_path, check):
    cut = section("gguf", gguf(RECORDS)[:-1])
    (tmp_path / "a.ktc").write_bytes(bundle([cut, *PARTS[1:]]))
    refusal(MalformedGguf, "OUT_OF_FILE", tmp_path / "a.ktc", check=check)


@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_a_manifest_of_another_architecture_is_refused(tmp_path, check):
    (tmp_path / "a.ktc").write_bytes(bundle(PARTS, architecture="gemma3"))
    assert "gemma3" in refusal(Malformed, "ARCHITECTURE", tmp_path / "a.ktc", check=check)


@pytest.mark.parametrize("count", [0, 2])
def test_a_bundle_of_one_part_is_refused(tmp_path, count):
    part = record(b"split.count", 2, count.to_bytes(2, "little"))
    (tmp_path / "a.ktc").write_bytes(bundle([section("gguf", gguf((*RECORDS, part))), *PARTS[1:]]))
    refusal(Malformed, "BAD_GGUF", tmp_path / "a.ktc")
    part = record(b"split.count", 2, b"\1\0")
    (tmp_path / "a.ktc").write_bytes(bundle([section("gguf", gguf((*RECORDS, part))), *PARTS[1:]]))
    open_model_file(tmp_path / "a.ktc").close()


def test_of_damage_and_a_broken_form_the_damage_is_told(packed):
    """A byte between two tensors must be zero, and that it isn't is the damage's fault."""
    with open_model_file(packed) as loaded:
        (begin, end), at = loaded.gguf.shards[0].header.padding[0], loaded.bundle.gguf.offset
        assert end > begin
    flip(packed, at + begin)
    refusal(Malformed, "LEAF_DIGEST", packed)


def test_records_are_the_keys_as_they_stand_in_the_file(tmp_path):
    keys = (
        GgufWriter().key("text", "\u00fc\u20ac").key("empty", "").key("\u00fc", True).key("texts", ["a", "", "\u20ac"])
    )
    for kind in CODES:
        if kind not in ("STRING", "ARRAY"):
            keys.key(f"one {kind}", 1, kind).key(f"three {kind}", [1, 0, 1], kind).key(f"no {kind}", [], kind)
    with Gguf.open(keys.write(tmp_path / "keys.gguf")) as model:
        (shard,), data = model.shards, keys.to_bytes()
        found = [(name, data[begin:end]) for name, begin, end in shard.records()]
    assert [name for name, _ in found] == list(model.metadata) and len(found) == 37
    assert all(text[8:].startswith(name.encode()) for name, text in found)
    assert b"".join(text for _, text in found) == keys.header()[24:]


# --- ahead of use ---


def test_leaves_are_checked_beside_what_comes_next(packed):
    with open_model_file(packed) as loaded:
        leaves = loaded.bundle.leaves
        assert (leaves.checked, leaves.count) == (1, 16)
        loaded.check_ahead()
        end = time.monotonic() + 30
        while leaves.checked < leaves.count and time.monotonic() < end:
            time.sleep(0.01)
        assert leaves.checked == leaves.count


def test_damage_that_is_found_ahead_is_told_to_who_uses_it(packed):
    flip(packed, place(packed, "second", 5_000_000))
    with open_model_file(packed) as loaded:
        loaded.check_ahead()
        time.sleep(0.2)
        with pytest.raises(Malformed, match="leaf 9 of"):
            loaded.weights["second"]


# --- identity ---


@pytest.mark.parametrize("check", ["lazy", "full", "none"])
def test_a_bundle_has_the_identity_of_the_model_in_it(bare, packed, check):
    with open_model_file(bare) as one, open_model_file(packed, check=check) as other:
        assert one.identity() == other.identity() == other.identity(rehash=True)


def test_the_identity_is_computed_once_for_each_state_of_the_file(packed, monkeypatch):
    time.sleep(2.1)  # a file that was just written could change within the clock's tick
    with open_model_file(packed) as loaded:
        first, whole = loaded.identity(), store.digests(packed)
        monkeypatch.setattr(store, "hash_stream", None)
        assert loaded.identity() == first and store.digests(packed) == whole
        with pytest.raises(TypeError):
            loaded.identity(rehash=True)


def test_a_manifest_that_promises_another_model_is_refused(tmp_path):
    entry, data = section("gguf", gguf(RECORDS), sha256=bytes(32))
    (tmp_path / "a.ktc").write_bytes(bundle([(entry, data), *PARTS[1:]]))
    with open_model_file(tmp_path / "a.ktc") as loaded, pytest.raises(Malformed) as caught:
        loaded.identity()
    assert caught.value.name == "SECTION_DIGEST"


def test_a_bundle_that_changes_in_use_is_noticed(packed):
    with open_model_file(packed) as loaded:
        loaded.check_unchanged()
        flip(packed, place(packed, "first"))
        for look in (loaded.check_unchanged, loaded.identity, lambda: loaded.identity(rehash=True)):
            with pytest.raises(FileProblem) as caught:
                look()
            assert caught.value.name == "FILE_CHANGED"


def test_weights_come_from_the_file_that_was_verified(bare, packed, tmp_path):
    """Another file under the same name changes nothing: it is not opened by its path again."""
    with Gguf.open(bare) as model, open_model_file(packed) as loaded:
        (tmp_path / "other").write_bytes(bytes(packed.stat().st_size))
        (tmp_path / "other").replace(packed)
        for name in NAMES:
            assert np.array_equal(loaded.gguf.data(name), model.data(name))


def test_the_identity_outlives_the_open_file(packed):
    loaded = open_model_file(packed)
    loaded.close()
    loaded.check_unchanged()
    assert loaded.identity().files[0].name == "bare.gguf"
    flip(packed, place(packed, "first"))
    with pytest.raises(FileProblem) as caught:
        loaded.identity()
    assert caught.value.name == "FILE_CHANGED"


# --- by name and by digest ---


def test_bundles_are_listed_and_found_by_name(home, packed, bare):
    models = home / "models"
    models.mkdir(parents=True)
    packed.rename(models / "a.ktc")
    bare.rename(models / "a.gguf")
    assert [(model.name, model.path.name) for model in store.pulled()] == [("a", "a.gguf"), ("a.ktc", "a.ktc")]
    assert store.resolve("a").name == "a.gguf" and store.resolve("a.ktc").name == "a.ktc"
    (models / "a.gguf").unlink()
    assert store.resolve("a").name == "a.ktc"
    (models / "b-00002-of-00002.ktc").write_bytes(b"")  # a bundle is never a part of a model
    assert [model.name for model in store.pulled()] == ["a.ktc", "b-00002-of-00002.ktc"]


def test_a_bundle_is_found_by_the_digests_of_its_model(home, packed, bare):
    digests = store.digests(bare)
    bare.unlink()
    assert store.find_by_digest(digests) is None
    models = home / "models"
    models.mkdir()
    packed.rename(models / "a.ktc")
    assert store.find_by_digest(digests) == models / "a.ktc"
    flip(models / "a.ktc", 100)
    assert store.find_by_digest(digests) is None


def test_a_bundle_that_was_hashed_before_is_found_where_it_is(packed, bare):
    digests = store.digests(bare)
    bare.unlink()
    time.sleep(2.1)
    with open_model_file(packed) as loaded:
        loaded.identity()
    assert store.find_by_digest(digests) == packed
    assert store.digests(packed).size == packed.stat().st_size  # the whole file has digests of its own
