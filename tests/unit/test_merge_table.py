"""A table of merges gives the ranks that reading them gives, and what is wrong with it changes no token."""

import os
import random

import pytest

from kinetic.gguf import Gguf
from kinetic.text import load_tokenizer, merge_table
from tests.support.gguf_writer import GgufWriter
from tests.support.tiny_tokenizers import byte_level

TEXT = "lowered abba ab baab bbaabab" * 3


@pytest.fixture
def metadata(tmp_path, monkeypatch):
    """A file with 400 merges, some of which repeat; tables are made of so few here."""
    rng = random.Random(1)
    symbols, merges = ["a", "b", "l", "o", "w", "e", "r"], []
    for _ in range(400):
        left, right = rng.choice(symbols), rng.choice(symbols)
        merges.append(f"{left} {right}")
        if len(left + right) < 6:
            symbols.append(left + right)
    assert len(set(merges)) < len(merges)
    monkeypatch.setattr(merge_table, "FEWEST", 10)
    keys = byte_level(dict.fromkeys(merges))
    keys["tokenizer.ggml.merges"] = merges
    with Gguf.open(GgufWriter().keys(keys).write(tmp_path / "m.gguf")) as file:
        yield file.metadata


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tables").mkdir()
    return tmp_path / "tables"


def ids(metadata, folder=None, text=TEXT):
    return load_tokenizer(metadata, folder).encode(text, add_special=False, parse_special=False)


def made(metadata, folder):
    """The one table, after it was made."""
    ids(metadata, folder)
    (path,) = folder.iterdir()
    return path


def test_ranks_are_the_places_of_the_merges(metadata):
    array = metadata["tokenizer.ggml.merges"]
    merges, content = list(array), array.content()
    table = merge_table.MergeTable(content, len(merges), merge_table.build(content, merges))
    for merge in merges:
        assert table.rank(merge) == merges.index(merge)
    for other in ("a", "a b c", "", " ", merges[0] + "x", merges[0][:-1], "\udcff \udcfe", "ä ö"):
        assert table.rank(other) == (merges.index(other) if other in merges else None)


def test_bytes_that_are_no_text():
    merges = ["\udcff a", "é \u2581", "a b"]
    content = b"".join(
        len(text).to_bytes(8, "little") + text
        for text in (merge.encode("utf-8", "surrogateescape") for merge in merges)
    )
    table = merge_table.MergeTable(content, 3, merge_table.build(content, merges))
    assert [table.rank(merge) for merge in merges] == [0, 1, 2]


@pytest.mark.parametrize("sought", [0, 1, 7, 20_000])
def test_tokens_are_the_same_with_a_table_and_without(metadata, folder, monkeypatch, sought):
    """Before it is there, with it, and where so many pairs are sought that all merges are read after all."""
    monkeypatch.setattr(merge_table.SoughtRanks, "SOUGHT", sought)
    plainly = ids(metadata)
    path = made(metadata, folder)
    before = path.stat().st_mtime_ns
    assert ids(metadata, folder) == plainly
    assert path.stat().st_mtime_ns == before


def test_the_table_is_what_is_used(metadata, folder, monkeypatch):
    made(metadata, folder)
    monkeypatch.setattr("kinetic.text.bpe.BytePairEncoder._read_all", lambda self: pytest.fail("all merges were read"))
    assert len(ids(metadata, folder)) > 10


@pytest.mark.parametrize("place", [0, 31, 32, 33, 1000, -1])
def test_a_damaged_table_is_not_used_and_made_anew(metadata, folder, place):
    path = made(metadata, folder)
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[place] ^= 1
    path.write_bytes(damaged)
    assert ids(metadata, folder) == ids(metadata) and path.read_bytes() == good


@pytest.mark.parametrize("length", [0, 31, 32, 1000, -4])
def test_a_table_that_was_cut_short(metadata, folder, length):
    path = made(metadata, folder)
    path.write_bytes(path.read_bytes()[:length])
    assert ids(metadata, folder) == ids(metadata)


def test_the_table_of_another_array_is_not_taken(metadata, folder):
    """One of as many merges, whole, under this name."""
    path, array = made(metadata, folder), metadata["tokenizer.ggml.merges"]
    other = GgufWriter().keys(byte_level() | {"tokenizer.ggml.merges": [merge[::-1] for merge in array]})
    with Gguf.open(other.write(folder.parent / "other.gguf")) as file:
        path.unlink()
        made(file.metadata, folder).rename(path)
    assert merge_table.load(path, array.content(), len(array)) is None
    assert ids(metadata, folder) == ids(metadata)


def test_a_folder_that_is_not_there(metadata, tmp_path):
    assert ids(metadata, tmp_path / "nowhere") == ids(metadata)
    (tmp_path / "file").write_bytes(b"")
    assert ids(metadata, tmp_path / "file") == ids(metadata)


def test_few_merges_need_no_table(metadata, folder, monkeypatch):
    monkeypatch.setattr(merge_table, "FEWEST", 401)
    assert ids(metadata, folder) == ids(metadata) and not list(folder.iterdir())


def test_the_oldest_tables_go(metadata, folder, monkeypatch):
    monkeypatch.setattr(merge_table, "MOST_TABLES", 2)
    for place in range(3):
        merge_table.save(folder / f"{place}.merges", b"x")
        os.utime(folder / f"{place}.merges", ns=(place, place))
    assert [path.name for path in sorted(folder.iterdir())] == ["1.merges", "2.merges"]
