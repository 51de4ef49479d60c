"""Whole files, byte for byte those of llama-quantize b11434: by digests it left, and beside it where there is one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

from kinetic.api.quantize import quantize, read_importance, tensors
from kinetic.backends.cpu.quantise import QUANTISABLE, Quantisers, lattice_tables
from kinetic.cli import main
from kinetic.gguf import Gguf
from kinetic.quantize.recipe import Recipe, parse_tensor_type
from kinetic.quantize.types import FILE_TYPES, TYPE_IDS, file_type
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.quantize_models import write_model

GOLDEN = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_S Q4_K_M Q5_K_M Q6_K IQ3_S IQ4_NL IQ4_XS TQ2_0 BF16 MXFP4_MOE "
    "gpt-oss-MXFP4_MOE"
).split()


def require(name):
    if TYPE_IDS[name] not in QUANTISABLE and name not in ("F32", "F16", "BF16"):
        pytest.skip(f"this build has no quantiser of {name} yet")


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files(golden, tmp_path, name):
    folder = golden / "formats" / "quantize"
    index = json.loads((folder / "index.json").read_text())
    entry = index["outputs"][name]
    require(file_type(name.removeprefix("gpt-oss-")).tensor_type)
    source = golden / entry["source"] if "source" in entry else folder / index["source"]
    target = tmp_path / "made.gguf"
    done = quantize(source, target, name.removeprefix("gpt-oss-"), threads=2)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == entry["sha256"]
    assert (target.stat().st_size, done.paths) == (entry["bytes"], (target,))


def test_every_golden_file_is_tested(golden):
    index = json.loads((golden / "formats" / "quantize" / "index.json").read_text())
    assert set(GOLDEN) == index["outputs"].keys()


# -- what needs nothing from outside


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "m-F16.gguf", "experts-4")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_decides_nothing(model, tmp_path, monkeypatch, threads):
    from kinetic.quantize import convert

    quantize(model, tmp_path / "whole.gguf", "Q8_0", threads=1)
    monkeypatch.setattr(convert, "SLICE", 256)  # A row at a time.
    quantize(model, tmp_path / "slices.gguf", "Q8_0", threads=threads)
    assert (tmp_path / "slices.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_tensors_are_those_of_the_file(model, tmp_path):
    recipe = Recipe(file_type("Q8_0"), tensor_types=(parse_tensor_type("attn_q=F16"),))
    quantize(model, tmp_path / "t.gguf", recipe)
    with Gguf.open(tmp_path / "t.gguf") as made:
        found = list(tensors(model, recipe))
        assert [name for name, _, _ in found] == list(made.tensors)
        for name, kind, data in found:
            assert made.data(name).tobytes() == data and made.tensors[name].ggml_type == TYPE_IDS[kind]
        wanted = ["output.weight", "blk.3.attn_q.weight"]
        some = [found[list(made.tensors).index(name)] for name in wanted]
        assert list(tensors(model, recipe, wanted)) == some
        assert [kind for _, kind, _ in some] == ["Q8_0", "F16"]


def test_a_copy_is_the_same_but_for_what_says_how_it_was_made(model, tmp_path):
    quantize(model, tmp_path / "copy.gguf", "COPY")
    with Gguf.open(model) as before, Gguf.open(tmp_path / "copy.gguf") as after:
        assert all(before.data(name).tobytes() == after.data(name).tobytes() for name in before.tensors)
        added = {"general.quantization_version": 2, "general.file_type": 1024 | 1}
        assert after.metadata == before.metadata | added and list(after.metadata)[-2:] == list(added)


def test_floats_are_rounded_once(tmp_path):
    values = np.float32([[1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 65519, -(2**-24) * 1.5, 0, -0.0, 1 + 2**-8, 3e38]])
    rows = np.repeat(values, 2, 0)
    GgufWriter().key("general.architecture", "llama").tensor("a.weight", rows).write(tmp_path / "f.gguf")
    quantize(tmp_path / "f.gguf", tmp_path / "b.gguf", "BF16")
    with Gguf.open(tmp_path / "b.gguf") as made:
        upper = made.data("a.weight").view(np.uint16).astype(np.uint32) << 16
    expected = np.float32([1, 1, 2**-25, 65536, -(2**-24) * 1.5, 0, -0.0, 1, np.float32(3e38)])
    assert upper[:7].tolist() == expected[:7].view(np.uint32).tolist() and upper[7].view(np.float32) == 1
    GgufWriter().key("general.architecture", "llama").tensor("a.weight", rows[:, :8]).write(tmp_path / "g.gguf")
    quantize(tmp_path / "g.gguf", tmp_path / "h.gguf", "F16")
    with Gguf.open(tmp_path / "h.gguf") as made:
        half = made.data("a.weight").view(np.float16)[:8]
    assert half.tolist() == [1, 1 + 2**-9, 0, 65504, -(2**-23), 0, 0, np.float16(1 + 2**-8)]


def test_tables_of_lattices_are_there_before_threads_ask():
    """Each would make its own, of which one is kept: kernels would read what is freed."""
    lattice_tables.neighbours.cache_clear()
    quantisers = Quantisers([18])
    rows = np.random.default_rng(0).normal(0, 1, (2, 256)).astype(np.float32)
    made = lattice_tables.neighbours.cache_info().misses
    quantisers.rows(18, rows, None)
    assert made == 1 == lattice_tables.neighbours.cache_info().misses


# -- beside the program


@pytest.fixture(scope="session")
def llama_quantize():
    program = shutil.which("llama-quantize")
    if program is None:
        pytest.skip("no llama-quantize on PATH")

    def run(*words):
        subprocess.run([program, *map(str, words), "2"], check=True, capture_output=True)

    return run


def old_matrix(path, model):
    """An importance matrix in the older format, of all tensors."""
    random = np.random.default_rng(1)
    with Gguf.open(model) as file:
        entries = [(name, t.shape[-1] * (t.shape[0] if len(t.shape) > 2 else 1)) for name, t in file.tensors.items()]
    raw = struct.pack("<i", len(entries))
    for name, count in entries:
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 3, count)
        raw += random.random(count, np.float32).tobytes()
    path.write_bytes(raw)
    return path


OPTIONS = {
    "none": [],
    "pure": ["--pure"],
    "leave": ["--leave-output-tensor"],
    "types": ["--output-tensor-type", "q8_0", "--token-embedding-type", "bf16", "--tensor-type", r"\.1\..*_v=f16"],
    "keys": ["--override-kv", "a.b=int:-3", "--override-kv", "general.architecture=str:llama"],
    "prune": ["--prune-layers", "0,5"],
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "Q5_0", "F32"])
def test_beside_llama_quantize(llama_quantize, tmp_path, name, options):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    llama_quantize(*OPTIONS[options], model, tmp_path / "theirs.gguf", name)
    assert main(["quantize", *OPTIONS[options], str(model), str(tmp_path / "ours.gguf"), name, "2"]) == 0
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_a_name_of_five_bytes_beside_llama_quantize(llama_quantize, tmp_path):
    with Gguf.open(write_model(tmp_path / "m.gguf", "heads-4")) as source:
        writer = GgufWriter().keys({key: source.metadata[key] for key in source.metadata})
    for name in ("weigh", "éabc", "abcd", "abcdef"):
        writer.tensor(name, np.ones((3, 32), np.float16))
    writer.write(tmp_path / "m.gguf")
    llama_quantize(tmp_path / "m.gguf", tmp_path / "theirs.gguf", "Q8_0")
    quantize(tmp_path / "m.gguf", tmp_path / "ours.gguf", "Q8_0")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


PATTERNS = [
    r"blk\.(1[0-9]|2)\.ffn",
    r"^(?!.*ffn).*weight$",
    r"\bffn_up\b",
    r"k\.\d{2,}\.",
    r"(blk\.(1.?)+)+\.attn",
    r"f*?_d",
]
PATTERNS += [
    r"^.{18,20}$",
    r"[\w-]k\.1\b",
    r"()*ffn",
    r"t]|up}?",
    r"[a\-b]lk\.5",
    r"[\]a]ttn_k",
    r"(a|f)+n",
    r"ffn|",
    r"[^a-z._0-9]",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_beside_llama_quantize(llama_quantize, tmp_path, pattern):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    llama_quantize("--tensor-type", f"{pattern}=q8_0", model, tmp_path / "theirs.gguf", "Q4_0")
    quantize(model, tmp_path / "ours.gguf", "Q4_0", tensor_types=(parse_tensor_type(f"{pattern}=q8_0"),))
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["heads-4", "experts-8", "rows-of-96"])
@pytest.mark.parametrize("entry", FILE_TYPES, ids=lambda entry: entry.name)
def test_every_type_beside_llama_quantize(llama_quantize, tmp_path, entry, shape):
    if (entry.name, shape) == ("Q1_0", "rows-of-96"):
        pytest.skip("neither program has a type that stands in for blocks of 128")
    require(entry.tensor_type)
    model = write_model(tmp_path / "m.gguf", shape)
    matrix = os.path.relpath(old_matrix(tmp_path / "m.dat", model))
    llama_quantize("--imatrix", matrix, model, tmp_path / "theirs.gguf", entry.name)
    quantize(model, tmp_path / "ours.gguf", entry.name, importance=read_importance(matrix))
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_split_beside_llama_quantize(llama_quantize, tmp_path):
    parts = [{"blk.1.a.weight": np.ones((2, 32), np.float16)}, {"blk.0.b.weight": np.ones((3, 64), np.float16)}]
    keys = {"general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 8}
    keys |= {"llama.embedding_length": 32, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    first = write_split(tmp_path, "m", keys, parts)[0]
    for words in ([], ["--keep-split"]):
        llama_quantize(*words, first, tmp_path / "theirs.gguf", "Q8_0")
        quantize(first, tmp_path / "ours.gguf", "Q8_0", keep_split=bool(words))
    for theirs in tmp_path.glob("theirs*.gguf"):
        ours = theirs.with_name(theirs.name.replace("theirs", "ours"))
        assert ours.read_bytes() == theirs.read_bytes(), theirs.name
    assert len(list(tmp_path.glob("theirs*.gguf"))) == 3
