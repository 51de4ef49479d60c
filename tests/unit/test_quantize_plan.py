"""The parts of quantising around the weights: importance matrices, keys, settings from words, what is refused."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from kinetic.api.bundle import pack
from kinetic.api.quantize import planned, quantize, read_importance, read_tensor_types, tensors
from kinetic.errors import FileProblem, KineticError, Malformed, MalformedGguf, UnsupportedModel, UsageError
from kinetic.gguf import Gguf
from kinetic.quantize.recipe import Override, Recipe, parse_layers, parse_override, parse_tensor_type
from kinetic.quantize.types import file_type
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.quantize_models import write_model

LLAMA = {"general.architecture": "llama", "llama.block_count": 2}


def refusal(kind: type[KineticError], name: str, call, *words, **options) -> str:
    with pytest.raises(kind) as caught:
        call(*words, **options)
    assert caught.value.name == name
    return str(caught.value)


# -- importance matrices


def matrix(path, entries, **keys):
    """As llama-imatrix writes it: name -> (sums [experts, K], counts [experts])."""
    known = {"imatrix.datasets": ["a.txt", "b.txt"], "imatrix.chunk_count": 7, "imatrix.chunk_size": 512}
    writer = GgufWriter().keys({"general.type": "imatrix", **known, **keys})
    for name, (sums, counts) in entries.items():
        writer.tensor(f"{name}.in_sum2", np.float32(sums)).tensor(f"{name}.counts", np.float32(counts))
    return writer.write(path)


def old_matrix(path, entries, tail=b""):
    raw = struct.pack("<i", len(entries))
    for name, (values, calls) in entries.items():
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        raw += np.float32(values).tobytes()
    path.write_bytes(raw + tail)
    return path


def test_matrix_as_gguf(tmp_path):
    sums, counts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[3], [0], [2.6]]
    found = read_importance(matrix(tmp_path / "m.gguf", {"a": (sums, counts), "b": ([[1, 0]], [[3]])}))
    first, last = np.float32([1, 2, 3]) / np.float32(3), np.float32([7, 8, 9]) / np.float32(3)
    assert found.entries["a"].tolist() == [*first, 1, 1, 1, *last]
    assert found.entries["b"].tolist() == [np.float32(1) / np.float32(3), 0]
    assert (found.dataset, found.chunks) == ("a.txt", 7)


def test_matrix_in_the_older_format(tmp_path):
    entries = {"a": ([1, 2], 3), "b": ([5], 0)}
    found = read_importance(old_matrix(tmp_path / "m.dat", entries, struct.pack("<ii", 9, 5) + b"wiki\0"))
    assert found.entries["a"].tolist() == [np.float32(1) / np.float32(3), np.float32(2) / np.float32(3)]
    assert (found.entries["b"].tolist(), found.dataset, found.chunks) == ([5], "wiki", 9)
    short = read_importance(old_matrix(tmp_path / "m.dat", entries))
    assert (short.dataset, short.chunks) == (None, 0)


def test_parts_of_a_matrix(tmp_path):
    path = old_matrix(tmp_path / "m.dat", {"a.q": ([1], 1), "a.k": ([1], 1), "b.q": ([1], 1)})
    assert list(read_importance(path, include=["b", "k"]).entries) == ["a.k", "b.q"]
    assert list(read_importance(path, exclude=["q"]).entries) == ["a.k"]
    refusal(UsageError, "BAD_ARGUMENTS", read_importance, path, ["q"], ["k"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\0",
        struct.pack("<i", -1),
        struct.pack("<ii", 1, 9) + b"short",
        struct.pack("<ii", 1, -4),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 0),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 2) + bytes(4),
        struct.pack("<ii", 2, 1) + b"a" + struct.pack("<ii", 1, 1) + bytes(4),
    ],
)
def test_broken_old_matrices(tmp_path, content):
    (tmp_path / "m.dat").write_bytes(content)
    assert "llama-imatrix" in refusal(Malformed, "BAD_IMATRIX", read_importance, tmp_path / "m.dat")


def test_broken_matrices(tmp_path):
    path = tmp_path / "m.gguf"
    GgufWriter().key("imatrix.datasets", ["a"]).write(path)
    assert "imatrix.chunk_count" in refusal(Malformed, "BAD_IMATRIX", read_importance, path)
    matrix(path, {"a": ([[1, 2, 3]], [[1], [1]])})
    refusal(Malformed, "BAD_IMATRIX", read_importance, path)
    matrix(path, {"a": (([[1, np.inf]]), [[1]])})
    assert "'a'" in refusal(Malformed, "NON_FINITE_IMATRIX", read_importance, path)
    matrix(path, {})
    refusal(Malformed, "EMPTY_IMATRIX", read_importance, path)


def test_importance_of_another_model(tmp_path):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    wrong = {"token_embd.weight": ([1.0], 1), "blk.0.attn_q.weight": ([1.0] * 255, 1)}
    importance = read_importance(old_matrix(tmp_path / "m.dat", wrong))
    said = refusal(Malformed, "IMATRIX_MISMATCH", quantize, model, tmp_path / "o.gguf", "Q8_0", importance=importance)
    assert "255 values, but 256" in said and not (tmp_path / "o.gguf").exists()
    # That of embeddings never fits, and is left out instead.
    with planned(model, Recipe(file_type("Q8_0")), importance.only(exclude=("attn",))) as plan:
        assert all(step.importance is None for step in plan.steps)


def test_experts_have_an_importance_each(tmp_path):
    model = write_model(tmp_path / "m.gguf", "experts-4")
    name, count = "blk.1.ffn_up_exps.weight", 4 * 256
    flat = read_importance(old_matrix(tmp_path / "m.dat", {name: ([1.0] * count, 1)}))
    steep = read_importance(old_matrix(tmp_path / "m.dat", {name: ([1.0] * 768 + list(range(256)), 1)}))
    recipe = Recipe(file_type("Q4_K_M"))
    ((_, _, a),), ((_, _, b),) = (list(tensors(model, recipe, [name], importance=i)) for i in (flat, steep))
    assert len(a) == len(b) == 4 * 2 * 144 and a[: 3 * 288] == b[: 3 * 288] and a[3 * 288 :] != b[3 * 288 :]


# -- keys


def keys_of(path):
    with Gguf.open(path) as file:
        return {key: (file.types[key], file.metadata[key]) for key in file.metadata}


def model_with(path, **keys):
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return GgufWriter().keys({**LLAMA, **named}).tensor("a.weight", np.ones((2, 32), np.float16)).write(path)


def test_order_of_keys(tmp_path):
    model = model_with(tmp_path / "m.gguf", general__file_type=1, x__y="z", general__name="n")
    importance = read_importance(old_matrix(tmp_path / "m.dat", {"a.weight": ([1.0] * 32, 1)}))
    overrides = tuple(map(parse_override, ["x.y=int:-3", "new=bool:true", "general.name=str:é", "f=float:0.1"]))
    quantize(model, tmp_path / "o.gguf", "Q8_0", importance=importance, overrides=overrides)
    assert list(keys_of(tmp_path / "o.gguf").items()) == [
        ("general.architecture", ("STRING", "llama")),
        ("llama.block_count", ("UINT32", 2)),
        ("general.quantization_version", ("UINT32", 2)),
        ("general.file_type", ("UINT32", 7)),
        ("x.y", ("UINT32", 3)),
        ("new", ("BOOL", True)),
        ("general.name", ("STRING", "é")),
        ("f", ("FLOAT32", float(np.float32(0.1)))),
        ("quantize.imatrix.file", ("STRING", str(tmp_path / "m.dat"))),
        ("quantize.imatrix.entries_count", ("UINT32", 1)),
    ]


def test_odd_keys_of_the_source(tmp_path):
    writer = GgufWriter(alignment=64).keys({**LLAMA, "words": ["a\0b", "", "c"], "split.no": 0})
    writer.keys({"split.count": 1, "split.tensors.count": 2}).tensor("a.weight", np.ones((2, 32), np.float16))
    quantize(writer.tensor("b.weight", np.ones(3, np.float32)).write(tmp_path / "m.gguf"), tmp_path / "o.gguf", "Q8_0")
    found = keys_of(tmp_path / "o.gguf")
    assert found["words"][1] == ["a", "", "c"] and not any(key.startswith("split.") for key in found)
    assert next(iter(found.items())) == ("general.alignment", ("UINT32", 32))


def test_a_matrix_of_one_row_has_one_dimension(tmp_path):
    writer = GgufWriter().keys(LLAMA).tensor("a.weight", np.ones((1, 32), np.float16))
    writer.tensor("b.weight", np.ones((2, 1, 32), np.float16)).write(tmp_path / "m.gguf")
    quantize(tmp_path / "m.gguf", tmp_path / "o.gguf", "Q8_0")
    with Gguf.open(tmp_path / "o.gguf") as made:
        assert made.tensors["a.weight"].shape == (32,) and made.tensors["a.weight"].ggml_type == 1
        assert made.tensors["b.weight"].shape == (2, 1, 32) and made.tensors["b.weight"].ggml_type == 8


@pytest.mark.parametrize(("name", "made"), [("weigh", 8), ("éabc", 8), ("abcd", 1), ("abcdef", 1), ("weight", 8)])
def test_names_of_five_bytes(tmp_path, name, made):
    """llama-quantize takes them for weights."""
    writer = GgufWriter().keys(LLAMA).tensor(name, np.ones((2, 32), np.float16))
    quantize(writer.write(tmp_path / "m.gguf"), tmp_path / "o.gguf", "Q8_0")
    with Gguf.open(tmp_path / "o.gguf") as file:
        assert file.tensors[name].ggml_type == made


@pytest.mark.parametrize("keys", [{}, {"general.architecture": ""}, {"general.architecture": 7}])
def test_a_file_that_is_no_model(tmp_path, keys):
    writer = GgufWriter().keys(keys).tensor("a.weight", np.ones((2, 32), np.float16))
    model = writer.write(tmp_path / "m.gguf")
    refusal(MalformedGguf, "MISSING_KEY", quantize, model, tmp_path / "o.gguf", "Q8_0")
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize(("stored", "expected"), [(None, 1024 | 1), (15, 15)])
def test_file_type_of_a_copy(tmp_path, stored, expected):
    keys = {} if stored is None else {"general__file_type": stored}
    quantize(model_with(tmp_path / "m.gguf", **keys), tmp_path / "o.gguf", "COPY")
    assert keys_of(tmp_path / "o.gguf")["general.file_type"] == ("UINT32", expected)


def test_pruning(tmp_path):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    quantize(model, tmp_path / "o.gguf", "Q8_0", prune=frozenset({0, 15}))
    with Gguf.open(tmp_path / "o.gguf") as made, Gguf.open(model) as before:
        assert list(made.metadata)[-1] == "llama.block_count" and made.get("llama.block_count", "int") == 14
        assert len(made.tensors) == len(before.tensors) - 14 and "blk.13.attn_q.weight" in made.tensors
    moved = list(tensors(model, Recipe(file_type("COPY"), prune=frozenset({0})), ["blk.4.attn_q.weight"]))
    with Gguf.open(model) as before:
        assert moved[0][2] == before.data("blk.5.attn_q.weight").tobytes()


def test_split_files(tmp_path):
    parts = [{"blk.1.a.weight": np.ones((2, 32), np.float16)}, {"blk.0.b.weight": np.ones((3, 64), np.float16)}]
    second = write_split(tmp_path, "m", LLAMA, parts)[1]
    done = quantize(second, tmp_path / "one.gguf", "Q8_0")
    with Gguf.open(tmp_path / "one.gguf") as one:
        assert list(one.tensors) == ["blk.0.b.weight", "blk.1.a.weight"] and len(done.paths) == 1
    done = quantize(second, tmp_path / "two.gguf", "Q8_0", keep_split=True)
    assert [path.name for path in done.paths] == ["two-00001-of-00002.gguf", "two-00002-of-00002.gguf"]
    with Gguf.open(done.paths[0]) as two, Gguf.open(tmp_path / "one.gguf") as one:
        assert len(two.shards) == 2 and list(two.tensors) == ["blk.1.a.weight", "blk.0.b.weight"]
        assert all(two.data(name).tobytes() == one.data(name).tobytes() for name in one.tensors)
        assert list(two.shards[1].header.metadata) == ["split.no", "split.count", "split.tensors.count"]
        assert two.types["split.no"] == "UINT16" and two.types["split.tensors.count"] == "INT32"


def test_the_model_in_a_bundle(tmp_path):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    pack(model, tmp_path / "m.ktc", leaves=True)
    quantize(model, tmp_path / "a.gguf", "Q8_0")
    quantize(tmp_path / "m.ktc", tmp_path / "b.gguf", "Q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize(
    ("layers", "name", "text"),
    [({3, 50}, "MISSING_LAYER", "no layer 50 to prune: its last is 15"), (range(16), "NO_LAYER_LEFT", "every layer")],
)
def test_layers_that_can_not_be_pruned(tmp_path, layers, name, text):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    prune = frozenset(layers)
    assert text in refusal(UsageError, name, quantize, model, tmp_path / "o.gguf", "Q8_0", prune=prune)
    model_with(model)
    said = refusal(UsageError, "MISSING_LAYER", quantize, model, tmp_path / "o.gguf", "Q8_0", prune=frozenset({0}))
    assert "it has none" in said and not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_source_that_changes_meanwhile(tmp_path, parts):
    """Nothing is left, of any part: what was read first may be of one file, and what came last of another."""
    rows = [{f"blk.{i}.a.weight": np.full((2, 32), i, np.float16)} for i in range(parts)]
    source = write_split(tmp_path, "m", LLAMA, rows)[-1]
    before = {path.name for path in tmp_path.iterdir()}
    told = []

    def change(done, total):
        told.append(done)
        with open(source, "r+b") as file:
            file.seek(-1, 2)
            file.write(b"?")
        os.utime(source, ns=(1, len(told)))

    target = tmp_path / "o.gguf"
    call = {"keep_split": parts > 1, "progress": change}
    assert source.name in refusal(FileProblem, "FILE_CHANGED", quantize, source, target, "Q8_0", **call)
    assert told and {path.name for path in tmp_path.iterdir()} == before


# -- settings from words


def test_words():
    assert parse_tensor_type("Attn_V=q8_0") == ("attn_v", "Q8_0")
    assert parse_tensor_type("x=BF16") == ("x", "BF16")
    assert parse_layers("3,1,3") == frozenset({1, 3})
    assert parse_override("a=int:7") == Override("a", "UINT32", 7)
    assert parse_override("a=str:x=y:z") == Override("a", "STRING", b"x=y:z")


@pytest.mark.parametrize("text", ["attn", "=q8_0", "attn=", "(=q8_0", "attn=q9", "a=b=q8_0"])
def test_bad_tensor_types(text):
    with pytest.raises(UsageError):
        parse_tensor_type(text)


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1;2"])
def test_bad_layers(text):
    with pytest.raises(UsageError):
        parse_layers(text)


@pytest.mark.parametrize(
    "text",
    ["a", "a=7", "a=int:", "a=int:x", f"a=int:{2**32}", "a=bool:yes", "a=float:1e39", f"a=str:{'x' * 128}", "a=u8:1"]
    + ["a=int:1_0", "a=int: 1", "a=int:\u0663", "a=float:1_0", "a=float:1 ", "a=float:\u0663.0"]
    + ["=int:1", f"{'k' * 128}=int:1", "general.alignment=int:64", "general.alignment=str:32"],
)
def test_bad_overrides(text):
    refusal(UsageError, "BAD_OVERRIDE", parse_override, text)


def test_words_of_a_file(tmp_path):
    (tmp_path / "t.txt").write_text("attn_v=q8_0\n\n ffn_UP=Q4_K   x=f16\n")
    assert read_tensor_types(tmp_path / "t.txt") == [("attn_v", "Q8_0"), ("ffn_up", "Q4_K"), ("x", "F16")]


# -- what is refused before any work


@pytest.mark.parametrize(
    ("name", "settings", "kind", "refused"),
    [
        ("IQ2_XXS", {}, UsageError, "IMATRIX_NEEDED"),
        ("IQ3_XXS", {}, UsageError, "IMATRIX_NEEDED"),
        ("Q2_K_S", {}, UsageError, "IMATRIX_NEEDED"),
        ("Q8_0", {"tensor_types": (("attn_q", "Q8_K"),)}, UsageError, "UNSUPPORTED_TYPE"),
        ("Q8_0", {"tensor_types": (("attn_q", "I8"),)}, UsageError, "UNSUPPORTED_TYPE"),
    ],
)
def test_refused(tmp_path, name, settings, kind, refused):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    refusal(kind, refused, quantize, model, tmp_path / "o.gguf", name, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_weights_that_cannot_be_quantised(tmp_path):
    writer = GgufWriter().keys(LLAMA).tensor("a.weight", np.ones((2, 32), np.int32)).write(tmp_path / "m.gguf")
    refusal(UnsupportedModel, "UNSUPPORTED_SOURCE", quantize, writer, tmp_path / "o.gguf", "Q8_0")
    quantize(model_with(tmp_path / "m.gguf"), tmp_path / "q.gguf", "Q8_0")
    refusal(UsageError, "REQUANTIZE", quantize, tmp_path / "q.gguf", tmp_path / "o.gguf", "Q4_0")
    quantize(tmp_path / "q.gguf", tmp_path / "o.gguf", "Q4_0", allow_requantize=True)
    refusal(UsageError, "MISSING_TENSOR", list, tensors(tmp_path / "o.gguf", Recipe(file_type("COPY")), ["b"]))
