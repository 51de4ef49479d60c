"""What the commands about bundles are made of: names, joined parts, files of profiles."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from kinetic.api.bundle import default_name, pack, read_derivation, read_profiles, require_name, unpack, verify
from kinetic.api.join import JoinedModel
from kinetic.errors import FileProblem, KineticError, Malformed, UnsupportedModel, UsageError
from kinetic.gguf import Gguf
from ktc.reader import open_verified
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.talking_model import write_talker

KEYS = {
    "general.architecture": "tiny",
    "general.name": "m",
    "tokenizer.ggml.tokens": ["a", "b\n", ""],
    "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
    "tiny.flag": True,
    "tiny.big": 7,
    "tokenizer.chat_template": "{{ messages }}",
}
PARTS = [
    {"a": np.arange(5, dtype=np.float32), "b": np.arange(7, dtype=np.int8)},
    {"c": np.arange(12, dtype=np.float16).reshape(2, 2, 3)},
    {"d": np.float64([[1.5], [2.5]])},
]
PROFILE = {"device": "cpu", "isa": "any", "cores": 4, "threads": 3, "prompt_rows": 128}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


def refusal(kind: type[KineticError], name: str, call, *words, **options) -> str:
    with pytest.raises(kind) as caught:
        call(*words, **options)
    assert caught.value.name == name
    return str(caught.value)


# --- names ---


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),  # as the catalog calls it
        ("My Model (v2).gguf", "my-model-v2-"),
        ("Big-00002-of-00012.gguf", "big"),
        ("__x__.gguf", "x__"),
        ("\u00fc.gguf", "model"),
        ("a" * 80 + ".gguf", "a" * 64),
    ],
)
def test_a_bundle_is_called_as_its_model(file, name):
    assert default_name(Path("/folder") / file) == name
    require_name(name)


@pytest.mark.parametrize("name", ["", "A", ".a", "-a", "a/b", "a" * 65, "a b", "a\n", "\u00fc"])
def test_what_can_be_no_name_is_refused_before_anything_runs(tmp_path, name):
    refusal(UsageError, "BAD_NAME", require_name, name)


# --- packing ---


def split(folder: Path, alignment: int | None) -> list[Path]:
    """As write_split, each part with the same alignment."""
    paths, total = [], sum(map(len, PARTS))
    for number, part in enumerate(PARTS):
        writer = GgufWriter(alignment=alignment).keys(KEYS if number == 0 else {})
        writer.key("split.no", number, "UINT16").key("split.count", len(PARTS), "UINT16")
        writer.key("split.tensors.count", total, "INT32")
        for name, values in part.items():
            writer.tensor(name, values)
        paths.append(writer.write(folder / f"m-{number + 1:05d}-of-{len(PARTS):05d}.gguf"))
    return paths


@pytest.mark.parametrize("alignment", [None, 64])
@pytest.mark.parametrize("given", [0, 2])
def test_the_parts_of_a_split_model_become_the_file_that_was_split(tmp_path, alignment, given):
    whole = GgufWriter(alignment=alignment).keys(KEYS)
    for part in PARTS:
        for name, values in part.items():
            whole.tensor(name, values)
    paths = split(tmp_path, alignment)
    written = pack(paths[given], tmp_path / "m.ktc", leaves=True)
    unpack(tmp_path / "m.ktc", tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == whole.to_bytes()
    assert written.manifest["name"] == "m" and written.manifest["file"] == "m.gguf"
    assert [source["name"] for source in written.manifest["sources"]] == [path.name for path in paths]
    for path, source in zip(paths, written.manifest["sources"], strict=True):
        data = path.read_bytes()
        assert (source["size"], source["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    with Gguf.open(tmp_path / "m.gguf") as one, Gguf.open(paths[0]) as parts:
        assert list(one.tensors) == list(parts.tensors) == ["a", "b", "c", "d"]
        for name in one.tensors:
            assert one.data(name).tobytes() == parts.data(name).tobytes()


def test_parts_with_tensors_of_unknown_size_can_not_be_joined(tmp_path):
    for number in range(2):
        writer = GgufWriter().key("split.no", number, "UINT16").key("split.count", 2, "UINT16")
        writer.key("split.tensors.count", 2, "INT32").key("general.architecture", "x")
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        writer.raw_tensor(f"t{number}", (32,), 99, bytes(64)).write(path)
    refusal(UnsupportedModel, "UNKNOWN_TENSOR_TYPE", pack, path, tmp_path / "m.ktc")
    assert not (tmp_path / "m.ktc").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_that_is_a_link_is_refused(tmp_path, number):
    paths = write_split(tmp_path, "m", KEYS, PARTS)
    paths[number].rename(tmp_path / "there")
    paths[number].symlink_to(tmp_path / "there")
    refusal(FileProblem, "SYMLINK", pack, paths[0], tmp_path / "m.ktc")
    paths[number].unlink()
    os.link(tmp_path / "there", paths[number])
    refusal(FileProblem, "HARD_LINK", pack, paths[0], tmp_path / "m.ktc")
    assert not (tmp_path / "m.ktc").exists()


def test_what_is_no_model_file_is_not_packed(tmp_path):
    path = write_talker(tmp_path / "a.gguf")
    pack(path, tmp_path / "a.ktc")
    refusal(UsageError, "ALREADY_BUNDLE", pack, tmp_path / "a.ktc", tmp_path / "b.ktc")
    refusal(FileProblem, "EXISTS", pack, path, tmp_path / "a.ktc")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    refusal(FileProblem, "EXISTS", pack, path, tmp_path / "dangling")
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    refusal(Malformed, "TRUNCATED", pack, tmp_path / "c.gguf", tmp_path / "b.ktc")
    refusal(FileProblem, "NO_FILE", pack, tmp_path / "d.gguf", tmp_path / "b.ktc")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.gguf", "a.ktc", "c.gguf", "dangling"]


def test_a_model_that_changes_while_it_is_packed_is_refused(tmp_path):
    path = write_talker(tmp_path / "a.gguf")

    def touch(done, total):
        os.utime(path, ns=(1, 1))

    refusal(FileProblem, "FILE_CHANGED", pack, path, tmp_path / "a.ktc", progress=touch)
    paths = write_split(tmp_path, "m", KEYS, PARTS)

    def touch_part(done, total):
        os.utime(paths[1], ns=(1, 1))

    refusal(FileProblem, "FILE_CHANGED", pack, paths[0], tmp_path / "m.ktc", progress=touch_part)
    assert not list(tmp_path.glob("*.ktc")) and not list(tmp_path.glob(".*"))


def test_a_part_that_changed_since_it_was_opened_is_refused(tmp_path):
    paths = write_split(tmp_path, "m", KEYS, PARTS)
    with Gguf.open(paths[0]) as gguf:
        os.utime(paths[1], ns=(1, 1))
        refusal(FileProblem, "FILE_CHANGED", JoinedModel, gguf)
        paths[0].write_bytes(paths[0].read_bytes())
        paths[0].rename(tmp_path / "x")
        paths[0].write_bytes((tmp_path / "x").read_bytes())
        refusal(FileProblem, "FILE_CHANGED", JoinedModel, gguf)


def test_a_verdict_on_a_bundle_is_plain_values(tmp_path):
    pack(write_talker(tmp_path / "a.gguf"), tmp_path / "a.ktc", leaves=True, release=3)
    found = verify(tmp_path / "a.ktc", sha256=True)
    assert (found["verdict"], found["exit_code"], found["bundle_name"], found["release"]) == ("INTACT", 0, "a", 3)
    data = bytearray((tmp_path / "a.ktc").read_bytes())
    data[60_000] ^= 1
    (tmp_path / "a.ktc").write_bytes(data)
    found = verify(tmp_path / "a.ktc")
    assert (found["verdict"], found["exit_code"], found["name"]) == ("MALFORMED", 11, "LEAF_DIGEST")
    assert found["damage"]["leaves"] == [0] and "leaf 0" in found["message"]
    json.dumps(found)
    assert verify(tmp_path / "none.ktc") | {"message": ""} == {
        "verdict": "UNREADABLE",
        "exit_code": 3,
        "name": "NO_FILE",
        "message": "",
    }
    assert verify(tmp_path / "a.ktc", min_release=4)["name"] == "OLD_RELEASE"


# --- files of profiles and derivations ---


def toml(tmp_path: Path, text: str) -> Path:
    (tmp_path / "x.toml").write_text(text)
    return tmp_path / "x.toml"


FIELDS = 'device = "cpu"\nisa = "any"\ncores = 4\nthreads = 3\nprompt_rows = 128\n'


def test_profiles_are_read_from_toml(tmp_path):
    assert read_profiles(toml(tmp_path, f"[[profile]]\n{FIELDS}" * 2)) == [PROFILE, PROFILE]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "NO_PROFILE"),
        ("profile = 1", "NO_PROFILE"),
        ("[[profile", "NOT_TOML"),
        ("x = 1", "UNKNOWN_FIELD"),
        (f"[[profile]]\n{FIELDS}library = '/tmp/x.so'", "UNKNOWN_FIELD"),
        (f"[[profile]]\n{FIELDS.replace('threads = 3', '')}", "MISSING_FIELD"),
        (f"[[profile]]\n{FIELDS.replace('= 3', '= 1000000')}", "OUT_OF_RANGE"),
        (f"[[profile]]\n{FIELDS.replace('= 3', '= 3.0')}", "WRONG_TYPE"),
        (f"[[profile]]\n{FIELDS.replace('any', 'fast')}", "UNKNOWN_WORD"),
        ("profile = [1]", "WRONG_TYPE"),
    ],
)
def test_a_profile_can_say_nothing_but_numbers_and_words_of_a_list(tmp_path, text, name):
    assert refusal(Malformed, name, read_profiles, toml(tmp_path, text)) != ""


def test_a_derivation_is_read_from_toml(tmp_path):
    digest = "0" * 64
    text = f"""
        tool = "llama-quantize"
        tool_version = "b7000"
        settings = "Q4_K_M"
        [[files]]
        name = "f16.gguf"
        size = 5
        blake3 = "{digest}"
        sha256 = "{digest}"
    """
    table = read_derivation(toml(tmp_path, text))
    assert table["files"][0]["name"] == "f16.gguf"
    pack(write_talker(tmp_path / "a.gguf"), tmp_path / "a.ktc", derivation=table)
    with open_verified(tmp_path / "a.ktc") as bundle:
        assert bundle.manifest["derivation"] == [table]
    refusal(Malformed, "UNKNOWN_FIELD", read_derivation, toml(tmp_path, text.replace("tool_version", "date")))
    refusal(FileProblem, "UNREADABLE", read_derivation, tmp_path / "none.toml")
