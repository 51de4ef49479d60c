"""Files that must be refused, numbered as in the project's list of attacks (1-33, the structure of a file).

Each case gives the stable reason name. A refusal must come before any large allocation.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kinetic.gguf
from conformance.attacks.gguf import ARRAY, CASES, STRING, big_endian, header, split_keys, tiny, two
from kinetic.errors import KineticError, MalformedGguf
from kinetic.gguf import Array, Gguf
from kinetic.gguf_parse import parse
from kinetic.gguf_types import REMOVED_TYPES, TYPES
from tests.support.gguf_writer import GgufWriter, string, write_split

WORD = np.arange(4, dtype=np.float32)


def refusal(data: bytes, path: Path) -> MalformedGguf:
    path.write_bytes(data)
    with pytest.raises(MalformedGguf) as caught:
        Gguf.open(path)
    return caught.value


@pytest.mark.parametrize(("data", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedGguf) as caught:
            Gguf.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.name == reason
    assert caught.value.exit_code == 11
    assert peak < 300_000 + 2 * min(len(data), 2**16), "something was allocated before its size was checked"
    message = str(caught.value)
    assert message.startswith("bad.gguf: ") and len(message) < 400 and "\n" not in message


def test_1_cut_at_every_byte(tmp_path: Path) -> None:
    data = tiny().to_bytes(final_padding=False)
    reasons = {refusal(data[:size], tmp_path / "cut.gguf").name for size in range(len(data))}
    assert reasons == {"EMPTY_FILE", "TRUNCATED", "BAD_STRING", "BAD_ARRAY", "OUT_OF_FILE"} | {
        "BAD_TENSOR_COUNT",
        "BAD_KEY_COUNT",
    }


def test_2_text_in_place_of_a_model_is_explained(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    assert "Git LFS pointer" in str(refusal(pointer, tmp_path / "a.gguf"))
    assert "web page" in str(refusal(b"\n<html>", tmp_path / "a.gguf"))


def test_3_big_endian_is_named(tmp_path: Path) -> None:
    assert "big-endian" in str(refusal(big_endian(), tmp_path / "a.gguf"))
    assert "big-endian" in str(refusal(header(tensors=1 << 56), tmp_path / "a.gguf"))


def test_6_counts_that_fit_exactly_are_read_on() -> None:
    """1024 bytes hold 31 tensors of the smallest size or 73 of the smallest keys; their names are empty here."""
    for counts in ({"tensors": 1024 // 33}, {"keys": 1024 // 14}):
        with pytest.raises(MalformedGguf) as caught:
            parse(memoryview(header(**counts)), "a")
        assert caught.value.name in ("BAD_TENSOR_NAME", "BAD_KEY")


def test_6_smallest_records_are_accepted() -> None:
    """The bounds are tight: a key of 14 bytes and a tensor of 33 bytes of header exist."""
    key = GgufWriter().key("k", 1, "UINT8")
    assert len(key.header()) == 24 + 14
    assert parse(memoryview(key.header()), "a").metadata == {"k": 1}
    tensor = GgufWriter().raw_tensor("t", (1,), 24, b"x")
    assert len(tensor.header()) == 24 + 33
    assert parse(memoryview(tensor.to_bytes()), "a").tensors[0].nbytes == 1


def test_6_more_than_a_million_records_are_refused() -> None:
    data = memoryview(b"GGUF" + struct.pack("<IQQ", 3, 2**20 + 1, 0) + bytes(33 * (2**20 + 1)))
    with pytest.raises(MalformedGguf) as caught:
        parse(data, "a")
    assert caught.value.name == "BAD_TENSOR_COUNT"


def test_14_token_bytes_are_kept_with_a_warning(tmp_path: Path) -> None:
    tokens = [b"a", b"\xff\xfe", b"\xed\xa0\x80", b"nul\0", "é".encode()]
    payload = struct.pack("<IQ", STRING, len(tokens)) + b"".join(map(string, tokens))
    path = GgufWriter().raw_key("tokenizer.ggml.tokens", ARRAY, payload).write(tmp_path / "a.gguf")
    with Gguf.open(path) as model:
        assert model.warnings == []
        decoded = model.metadata["tokenizer.ggml.tokens"]
        assert [text.encode("utf-8", "surrogateescape") for text in decoded] == tokens
        assert model.warnings == ["key 'tokenizer.ggml.tokens': 3 of 5 strings hold NUL or are not UTF-8"]


@pytest.mark.parametrize("code", [*REMOVED_TYPES, max(TYPES) + 1, -1, -(2**31)])
def test_26_unknown_types_fail_only_when_used(code: int, tmp_path: Path) -> None:
    writer = GgufWriter().tensor("known", WORD)
    writer.raw_tensor("unknown", (7, 5), code, b"\xaa" * 77).tensor("after", WORD)
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert (model.tensors["unknown"].ggml_type, model.tensors["unknown"].nbytes) == (code, -1)
        assert model.data("after").tobytes() == WORD.tobytes()
        assert any(str(code) in warning for warning in model.warnings)
        with pytest.raises(MalformedGguf, match=f"'unknown'.*{code}") as caught:
            model.data("unknown")
        assert caught.value.name == "UNKNOWN_TENSOR_TYPE"


@pytest.mark.parametrize(("offset", "reason"), [(0, "OVERLAP"), (16, "BAD_OFFSET"), (2**20, "OUT_OF_FILE")])
def test_26_tensors_after_an_unknown_type_are_still_checked(offset: int, reason: str, tmp_path: Path) -> None:
    writer = GgufWriter().tensor("known", WORD).raw_tensor("unknown", (4,), 99, b"\xaa" * 16).tensor("after", WORD)
    writer._tensors[2].offset = offset
    assert refusal(writer.to_bytes(), tmp_path / "a.gguf").name == reason


def test_30_padding_after_the_last_tensor_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(two(("a", 0), ("b", 32), tail=b"\0" * 48))
    with Gguf.open(path) as model:
        assert model.warnings == ["a.gguf: 32 unused zero bytes follow the last tensor"]


def split(folder: Path, parts: int = 3, stem: str = "m") -> list[Path]:
    tensors = [{f"t{index}": np.full(4, index, np.float32)} for index in range(parts)]
    return write_split(folder, stem, {"general.architecture": "tiny", "general.name": stem}, tensors)


def missing_part(folder: Path) -> Path:
    paths = split(folder)
    paths[1].unlink()
    return paths[0]


def part_of_another_model(folder: Path) -> Path:
    paths = split(folder)
    split_keys(1, 3, 4).tensor("t1", WORD).write(paths[1])
    return paths[0]


def part_with_another_name_key(folder: Path) -> Path:
    paths = split(folder)
    split_keys(1, 3, 3).key("general.name", "other").tensor("t1", WORD).write(paths[1])
    return paths[2]


def part_without_keys(folder: Path) -> Path:
    paths = split(folder)
    GgufWriter().tensor("t1", WORD).write(paths[1])
    return paths[0]


def parts_swapped(folder: Path) -> Path:
    first, second, third = split(folder)
    second.rename(folder / "keep")
    third.rename(second)
    (folder / "keep").rename(third)
    return first


def same_tensor_twice(folder: Path) -> Path:
    return write_split(folder, "m", {}, [{"t": WORD}, {"t": WORD}])[0]


def joined(folder: Path) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(b"".join(part.read_bytes() for part in split(folder)))
    return path


def written(writer: GgufWriter, name: str) -> Callable[[Path], Path]:
    return lambda folder: writer.write(folder / name)


NUMBERS = {"split.no": 0, "split.count": 2, "split.tensors.count": 0}
SPLITS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("number = count", written(split_keys(2, 2, 0), "m-00003-of-00002.gguf"), "SPLIT_NUMBER"),
    ("number of none", written(split_keys(0, 0, 0), "m.gguf"), "SPLIT_NUMBER"),
    ("count 65,535", written(split_keys(0, 65535, 0), "m-00001-of-65535.gguf"), "SPLIT_MISSING"),
    ("count 1 of 2", written(split_keys(0, 1, 1).tensor("t", WORD), "m-00001-of-00002.gguf"), "SPLIT_NAME"),
    ("count 1, tensors missing", written(split_keys(0, 1, 2).tensor("t", WORD), "m.gguf"), "SPLIT_TENSOR_COUNT"),
    ("negative number", written(GgufWriter().keys(dict(NUMBERS, **{"split.no": -1})), "m.gguf"), "SPLIT_NUMBER"),
    ("only a count", written(GgufWriter().key("split.count", 2), "m.gguf"), "SPLIT_KEYS"),
    ("count as a flag", written(GgufWriter().keys(dict(NUMBERS, **{"split.count": True})), "m.gguf"), "SPLIT_KEYS"),
    ("renamed", written(split_keys(1, 3, 3), "best-of-breed.gguf"), "SPLIT_NAME"),
    ("other place in its name", written(split_keys(1, 3, 3), "m-00001-of-00003.gguf"), "SPLIT_NAME"),
    ("missing part", missing_part, "SPLIT_MISSING"),
    ("part of another model", part_of_another_model, "SPLIT_MISMATCH"),
    ("part with another name", part_with_another_name_key, "SPLIT_MISMATCH"),
    ("part without keys", part_without_keys, "SPLIT_MISMATCH"),
    ("parts swapped", parts_swapped, "SPLIT_MISMATCH"),
    ("same tensor twice", same_tensor_twice, "DUPLICATE_TENSOR"),
    ("joined end to end", joined, "SPLIT_JOINED"),
]


@pytest.mark.parametrize(("make", "reason"), [case[1:] for case in SPLITS], ids=[case[0] for case in SPLITS])
def test_32_split_keys(make: Callable[[Path], Path], reason: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedGguf) as caught:
        Gguf.open(make(tmp_path))
    assert caught.value.name == reason


def test_32_missing_parts_are_named_but_not_by_the_thousand(tmp_path: Path) -> None:
    with pytest.raises(MalformedGguf, match=r"3 parts these are missing: m-00002-of-00003\.gguf;"):
        Gguf.open(missing_part(tmp_path))
    path = split_keys(0, 65535, 0).write(tmp_path / "m-00001-of-65535.gguf")
    with pytest.raises(MalformedGguf, match=r"m-00009-of-65535\.gguf and more;"):
        Gguf.open(path)


def test_32_no_path_but_the_siblings_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that look like patterns or paths stay names."""
    folder = tmp_path / "[a]"
    folder.mkdir()
    paths = split(folder, 2, "*")
    split(tmp_path, 2, "*")
    opened: list[Path] = []
    shard = kinetic.gguf.Shard
    monkeypatch.setattr(kinetic.gguf, "Shard", lambda path: opened.append(path) or shard(path))
    with Gguf.open(paths[1]):
        assert sorted(opened) == paths


def test_33_declared_type_and_version_are_doubted(tmp_path: Path) -> None:
    writer = GgufWriter().key("general.file_type", 2).raw_tensor("t", (32,), 8, b"\0" * 34)
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert model.warnings == [
            "general.file_type 2 says mostly Q4_0, but no tensor is Q4_0",
            "general.quantization_version is missing",
        ]


@pytest.mark.parametrize("version", [2, 3])
def test_flipped_bytes_never_do_worse_than_an_error_of_ours(version: int, tmp_path: Path) -> None:
    """600 files with one to four random bytes replaced: each opens or is refused, and so is all it holds."""
    writer = tiny()
    writer.version = version
    data, path, rng, opened = writer.to_bytes(), tmp_path / "flip.gguf", random.Random(version), 0
    for _ in range(600):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 8, 9, 127, 128, 255, rng.randrange(256)))
        path.write_bytes(changed)
        try:
            with Gguf.open(path) as model:
                repr(model.metadata)
                for value in model.metadata.values():
                    list(value) if isinstance(value, Array) else value
                for name in model.tensors:
                    model.data(name).tobytes()
            opened += 1
        except KineticError as refused:
            assert refused.name.isupper() and "\n" not in str(refused)
    assert 60 < opened < 540
