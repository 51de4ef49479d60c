"""What the reader gives for files that are right, and for the odd ones that real programs write."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kinetic.errors import FileProblem, MalformedGguf
from kinetic.gguf import TYPES, Gguf, Tensor
from kinetic.gguf_types import FILE_TYPES, VALUES, type_name
from tests.support.gguf_writer import CODES, GgufWriter, write_split

WORD = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(version: int, tmp_path: Path) -> None:
    values = {
        "UINT8": 255,
        "INT8": -128,
        "UINT16": 2**16 - 1,
        "INT16": -(2**15),
        "UINT32": 2**32 - 1,
        "INT32": -(2**31),
        "UINT64": 2**64 - 1,
        "INT64": -(2**63),
        "FLOAT32": 0.1,
        "FLOAT64": 0.1,
        "BOOL": True,
        "STRING": "Zürich \U0001f638",
    }
    assert values.keys() == {name for name, _ in VALUES.values()} - {"ARRAY"}
    writer = GgufWriter(version)
    for kind, value in values.items():
        writer.key(kind, value, kind).key(f"{kind}s", [value, value], kind).key(f"no {kind}", [], kind)
    expected = values | {"FLOAT32": float(np.float32(0.1))}
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert model.version == version
        for kind, value in expected.items():
            assert (model.metadata[kind], model.types[kind]) == (value, kind)
            assert type(model.metadata[kind]) is type(value)
            assert (model.metadata[f"{kind}s"], model.types[f"{kind}s"]) == ([value, value], f"ARRAY[{kind}]")
            assert type(model.metadata[f"{kind}s"][0]) is type(value)
            assert list(model.metadata[f"no {kind}"]) == []
        assert list(model.metadata)[:3] == ["UINT8", "UINT8s", "no UINT8"]
        assert model.warnings == []


def test_arrays_behave_as_sequences(tmp_path: Path) -> None:
    texts = ["a", "", "b", "é"]
    with Gguf.open(GgufWriter().key("texts", texts).key("numbers", [1, 2]).write(tmp_path / "a.gguf")) as model:
        array = model.metadata["texts"]
    assert len(array) == 4, "arrays outlive the file"
    assert array == texts and array == tuple(texts) and array != texts[:3] and array != "ab"
    assert array[-1] == "é" and array[1:3] == ["", "b"] and list(reversed(array)) == texts[::-1]
    assert "b" in array and array.index("b") == 2 and sorted(array) == sorted(texts)
    with pytest.raises(IndexError):
        array[4]
    assert repr(array) == "<4 x STRING>"


def test_arrays_are_decoded_only_when_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GgufWriter().key("texts", ["a", "b"]).write(tmp_path / "a.gguf")
    calls: list[int] = []
    real = sys.modules["kinetic.gguf_types"]._decode_strings  # type: ignore[attr-defined]
    monkeypatch.setattr("kinetic.gguf_types._decode_strings", lambda *args: calls.append(1) or real(*args))
    with Gguf.open(path) as model:
        assert len(model.metadata["texts"]) == 2 and calls == []
        assert (model.metadata["texts"][0], model.metadata["texts"][1]) == ("a", "b") and calls == [1]


def test_shapes_are_row_major_and_views_are_not_copies(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = GgufWriter().tensor("first", WORD.astype(np.float16)).tensor("cube", values).write(tmp_path / "a.gguf")
    with Gguf.open(path) as model:
        cube = model.tensors["cube"]
        assert (cube.shape, cube.ggml_type, cube.nbytes, cube.shard) == ((2, 3, 4), 0, 96, 0)
        assert path.read_bytes()[cube.offset : cube.offset + 96] == values.tobytes()
        view = model.data("cube")
        assert view.dtype == np.uint8 and view.shape == (96,) and not view.flags.writeable and not view.flags.owndata
        assert np.array_equal(view.view(np.float32).reshape(2, 3, 4), values)
    assert view[4:8].tobytes() == np.float32(1).tobytes(), "a view outlives the file"


def test_missing_tensor(tmp_path: Path) -> None:
    with Gguf.open(GgufWriter().write(tmp_path / "a.gguf")) as model, pytest.raises(MalformedGguf) as caught:
        model.data("absent")
    assert caught.value.name == "MISSING_TENSOR" and "'absent'" in str(caught.value)


@pytest.mark.parametrize("ggml_type", TYPES)
def test_bytes_of_every_tensor_type(ggml_type: int, tmp_path: Path) -> None:
    name, block, size = TYPES[ggml_type]
    data = bytes(index % 251 for index in range(3 * 2 * size))
    path = GgufWriter().raw_tensor("t", (3, 2 * block), ggml_type, data).write(tmp_path / "a.gguf")
    with Gguf.open(path) as model:
        assert model.tensors["t"].nbytes == len(data)
        assert model.data("t").tobytes() == data
        assert type_name(ggml_type) == name


def test_every_file_type_names_a_tensor_type() -> None:
    assert set(FILE_TYPES.values()) <= {name for name, _, _ in TYPES.values()}


# -- typed access


def test_get_checks_types(tmp_path: Path) -> None:
    writer = GgufWriter().keys({"int": 7, "float": 0.5, "bool": True, "str": "x", "list": [1]}).key("wide", 7, "UINT64")
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert model.get("int", "int") == model.get("wide", "int") == 7
        assert (model.get("float", "float"), model.get("bool", "bool"), model.get("str", "str")) == (0.5, True, "x")
        assert model.get("absent", "int", 9) == 9 and model.get("absent", "str", "") == ""
        with pytest.raises(MalformedGguf, match=r"key 'absent' is missing") as caught:
            model.get("absent", "int")
        assert caught.value.name == "MISSING_KEY"
        for key, kind in (("float", "int"), ("int", "float"), ("bool", "int"), ("int", "bool"), ("list", "int")):
            with pytest.raises(MalformedGguf, match=f"key '{key}' is .* not of type {kind}") as caught:
                model.get(key, kind, 1)  # type: ignore[call-overload]
            assert caught.value.name == "BAD_KEY_TYPE"


# -- real files are like this


@pytest.mark.parametrize("alignment", [8, 16, 64, 4096])
@pytest.mark.parametrize("filler", [0, 1, 7, 15, 16, 33])
def test_any_alignment_at_any_header_length(alignment: int, filler: int, tmp_path: Path) -> None:
    writer = GgufWriter(alignment=alignment).key("filler", "x" * filler)
    contents = {f"t{index}": np.full(4, index + 1, np.float32) for index in range(3)}
    for name, values in contents.items():
        writer.tensor(name, values)
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert model.alignment == alignment
        assert {name: model.data(name).tobytes() for name in contents} == {k: v.tobytes() for k, v in contents.items()}
        assert all(tensor.offset % alignment == 0 for tensor in model.tensors.values())


def test_last_tensor_may_lack_its_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(GgufWriter().tensor("t", WORD).to_bytes(final_padding=False))
    with Gguf.open(path) as model:
        assert model.data("t").tobytes() == WORD.tobytes() and model.warnings == []


def test_vocabulary_only_files_may_end_with_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(GgufWriter().key("a", 1).header())
    with Gguf.open(path) as model:
        assert model.metadata == {"a": 1} and model.tensors == {} and model.warnings == []


def test_file_types_that_agree_are_not_doubted(tmp_path: Path) -> None:
    writer = GgufWriter().keys({"general.file_type": 7 | 1024, "general.quantization_version": 2})
    writer.raw_tensor("t", (32,), 8, b"\0" * 34).tensor("norm", WORD)
    with Gguf.open(writer.write(tmp_path / "a.gguf")) as model:
        assert model.warnings == []


@pytest.mark.parametrize("name", ["Загрузки", "Maëlys", "模型 🦙", "a b'c"])
def test_paths_in_any_script(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with Gguf.open(GgufWriter().tensor("t", WORD).write(folder / f"{name}.gguf")) as model:
        assert model.data("t").tobytes() == WORD.tobytes()
    parts = write_split(folder, name, {"k": 1}, [{"a": WORD}, {"b": WORD}])
    with Gguf.open(str(parts[1])) as model:
        assert list(model.tensors) == ["a", "b"]


# -- split models


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_whole_model(given: int, tmp_path: Path) -> None:
    parts = [{"a": WORD, "b": WORD + 1}, {"c": WORD + 2}, {"d": WORD + 3}]
    paths = write_split(tmp_path, "m", {"general.architecture": "tiny"}, parts)
    with Gguf.open(paths[given]) as model:
        assert model.metadata["general.architecture"] == "tiny" and model.metadata["split.no"] == 0
        assert model.paths == tuple(paths) and model.size == sum(path.stat().st_size for path in paths)
        assert {name: tensor.shard for name, tensor in model.tensors.items()} == {"a": 0, "b": 0, "c": 1, "d": 2}
        assert model.data("d").tobytes() == (WORD + 3).tobytes()


def test_first_part_may_hold_no_tensors(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", {"general.quantization_version": 2, "general.file_type": 0}, [{}, {"a": WORD}])
    with Gguf.open(paths[0]) as model:
        assert model.tensors["a"].shard == 1 and model.warnings == []


def test_parts_may_differ_in_alignment(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", {}, [{"a": WORD}, {"b": WORD}])
    keys = {"split.no": 0, "split.count": 2, "split.tensors.count": 2}
    GgufWriter(alignment=64).keys(keys).tensor("a", WORD).write(paths[0])
    with Gguf.open(paths[0]) as model:
        assert model.alignment == 64 and model.data("b").tobytes() == WORD.tobytes()


def test_names_alone_do_not_make_a_split_model(tmp_path: Path) -> None:
    for name in ("best-of-breed.gguf", "m-00001-of-00003.gguf"):
        with Gguf.open(GgufWriter().tensor("t", WORD).write(tmp_path / name)) as model:
            assert len(model.paths) == 1


# -- the file system


def test_file_problems(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    for name, reason in (
        ("absent.gguf", "FILE_NOT_FOUND"),
        ("folder.gguf", "NOT_A_FILE"),
        ("nul\0.gguf", "UNREADABLE_FILE"),
        ("a" * 300, "UNREADABLE_FILE"),
    ):
        with pytest.raises(FileProblem) as caught:
            Gguf.open(tmp_path / name)
        assert caught.value.name == reason


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FileProblem) as caught:
        Gguf.open(tmp_path / "pipe.gguf")
    assert caught.value.name == "NOT_A_FILE"


def test_a_file_written_to_is_noticed(tmp_path: Path) -> None:
    path = GgufWriter().tensor("t", WORD).write(tmp_path / "a.gguf")
    with Gguf.open(path) as model:
        model.check_unchanged()
        with path.open("ab") as file:
            file.write(b"\0")
        with pytest.raises(FileProblem) as caught:
            model.check_unchanged()
        assert caught.value.name == "FILE_CHANGED"


def test_a_file_replaced_by_another_of_the_same_name_stays_as_opened(tmp_path: Path) -> None:
    path = GgufWriter().tensor("t", WORD).write(tmp_path / "a.gguf")
    with Gguf.open(path) as model:
        GgufWriter().tensor("t", WORD + 1).write(tmp_path / "b.gguf").replace(path)
        model.check_unchanged()
        assert model.data("t").tobytes() == WORD.tobytes()


def test_files_are_closed(tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("counts open files in /proc, which is only on Linux")
    paths = write_split(tmp_path, "m", {}, [{"a": WORD}, {"b": WORD}])
    before = len(os.listdir("/proc/self/fd"))
    Gguf.open(paths[0]).close()
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    for path in (*paths, tmp_path / "absent"):
        with pytest.raises((MalformedGguf, FileProblem)):
            Gguf.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_opening_imports_no_numpy(tmp_path: Path) -> None:
    path = GgufWriter().key("a", ["x"]).tensor("t", WORD).write(tmp_path / "a.gguf")
    code = (
        f"import sys; from kinetic.gguf import Gguf; Gguf.open({str(path)!r}).close(); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


# -- files by llama.cpp


def test_golden_models(golden: Path) -> None:
    """Every tensor of every file lies where llama.cpp put it: all bytes of a file are accounted for."""
    paths = sorted(golden.glob("archs/*/model.gguf")) + sorted(golden.glob("formats/quantize/*.gguf"))
    assert len(paths) > 60
    for path in paths:
        with Gguf.open(path) as model:
            assert model.warnings == [], path
            end = max(tensor.offset + tensor.nbytes for tensor in model.tensors.values())
            assert 0 <= path.stat().st_size - end < model.alignment


def test_golden_tensor_digests(golden: Path) -> None:
    folder = golden / "formats" / "quantize"
    outputs = json.loads((folder / "index.json").read_text())["outputs"]
    assert len(outputs) > 10
    for output in (output for output in outputs.values() if output["file"]):
        with Gguf.open(folder / output["file"]) as model:
            assert model.tensors.keys() == output["tensors"].keys()
            for name, facts in output["tensors"].items():
                tensor = model.tensors[name]
                assert (type_name(tensor.ggml_type), list(tensor.shape[::-1])) == (facts["type"], facts["shape_ne"])
                assert hashlib.sha256(model.data(name)).hexdigest() == facts["sha256"]


def test_golden_vocabularies(golden: Path, tmp_path: Path) -> None:
    paths = sorted((golden / "tokenizers").glob("ggml-vocab-*.gguf.xz"))
    assert len(paths) > 10
    for packed in paths[:1] + paths[-1:]:
        path = tmp_path / packed.stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        with Gguf.open(path) as model:
            assert model.tensors == {} and len(model.metadata["tokenizer.ggml.tokens"]) > 1000


def test_smollm2(smollm2_path: Path) -> None:
    with Gguf.open(smollm2_path) as model:
        assert (model.version, model.alignment, len(model.metadata), len(model.tensors)) == (3, 32, 33, 272)
        assert model.tensors["blk.0.attn_k.weight"].shape == (192, 576)
        assert model.metadata["tokenizer.ggml.tokens"][2] == "<|im_end|>"
        assert len(model.metadata["tokenizer.ggml.merges"]) == 48900
        assert model.warnings == []


def test_gemma3(gemma3_path: Path) -> None:
    with Gguf.open(gemma3_path) as model:
        embedding = model.tensors["token_embd.weight"]
        assert isinstance(embedding, Tensor) and embedding.shape == (262144, 640)
        tokens = model.metadata["tokenizer.ggml.tokens"]
        assert len(tokens) == 262144 and tokens[2] == "<bos>"
        assert model.warnings == []


def test_codes_of_the_writer_are_those_of_the_reader() -> None:
    assert {name: code for name, (code, _) in CODES.items()} == {name: code for code, (name, _) in VALUES.items()}
