"""``kinetic quantize`` as a user runs it: what it says, what it refuses, and that nothing half stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from kinetic.cli import main
from kinetic.gguf import Gguf
from kinetic.quantize.tensors import order
from tests.cli.conftest import COMMAND, ROOT
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.quantize_models import write_model

KEYS = {"general.architecture": "llama", "llama.block_count": 1}


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m-F16.gguf", "rows-of-320")


@pytest.fixture
def quantize(capsys):
    """``quantize(words..., code=0)`` -> (standard output, standard error)."""

    def quantize(*words, code=0):
        assert main(["quantize", *map(str, words)]) == code
        return capsys.readouterr()

    return quantize


def refused(said, text):
    """One line of one sentence, on standard error."""
    assert said.out == "" and said.err.startswith("kinetic: ") and said.err.count("\n") == 1
    assert text in said.err, said.err


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_it_says(quantize, model, tmp_path):
    out = tmp_path / "m-Q4_K_M.gguf"
    said = quantize(model, out, "q4_k_m", "2", "-q")
    size = out.stat().st_size
    assert said.out.splitlines()[0] == f"{out}: {size:,} bytes"
    assert "bits a weight) -> " in said.out.splitlines()[1]
    lines = [line for line in said.err.splitlines() if "compiling" not in line]
    assert len(lines) == 2 and all("rows don't divide into" in line for line in lines)
    assert "Q5_0 instead of Q4_K for" in said.err and "Q8_0 instead of Q6_K for 9 tensors" in said.err
    with Gguf.open(out) as made:
        assert made.get("general.file_type", "int") == 15
    facts = json.loads(quantize(model, tmp_path / "again.gguf", "15", "--json", "-q").out)
    assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()
    assert facts["files"] == [str(tmp_path / "again.gguf")] and facts["substitutions"][0]["wanted"] in ("Q4_K", "Q6_K")
    with Gguf.open(out) as made:
        assert facts["bytes"] == sum(tensor.nbytes for tensor in made.tensors.values())


def test_info_of_what_was_made(quantize, model, tmp_path, capsys):
    quantize(model, tmp_path / "o.gguf", "Q5_0", "-q")
    assert main(["info", "--json", str(tmp_path / "o.gguf")]) == 0
    assert json.loads(capsys.readouterr().out)["format_mix"].keys() == {"Q5_0", "Q8_0"}


def test_without_a_name(quantize, model, tmp_path):
    quantize(model, "Q8_0", "1", "-q")
    assert files(tmp_path) == ["ggml-model-Q8_0.gguf", "m-F16.gguf"]


@pytest.mark.parametrize("source", [".", "/"])
def test_a_folder_without_a_name(quantize, source):
    refused(quantize(source, "Q4_0", code=3), f"{source} is a folder")


def test_a_name_of_a_model_without_a_name(quantize, model, tmp_path, monkeypatch):
    """The new file is here, not among the models that were pulled."""
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "models").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    model.rename(tmp_path / "home" / "models" / "tiny.gguf")
    monkeypatch.chdir(tmp_path / "here")
    assert quantize("tiny", "Q8_0", "1", "-q").out.startswith("ggml-model-Q8_0.gguf: ")
    assert files(tmp_path / "here") == ["ggml-model-Q8_0.gguf"]


def test_dry_run(quantize, model, tmp_path):
    said = quantize(model, tmp_path / "o.gguf", "Q4_0", "--dry-run")
    assert files(tmp_path) == ["m-F16.gguf"]
    rows = said.out.splitlines()
    with Gguf.open(model) as source:
        assert [row.split()[0] for row in rows[:-1]] == sorted(source.tensors, key=order)
    promised = rows[-1]
    quantize(model, tmp_path / "o.gguf", "Q4_0", "-q")
    assert f"{(tmp_path / 'o.gguf').stat().st_size:,} bytes of file" in promised
    plan = json.loads(quantize(model, "Q4_0", "--dry-run", "--json").out)
    assert plan["files"] == [] and plan["tensors"][1] == {
        "name": "blk.0.attn_k.weight",
        "shape": [320, 2],
        "from": "F16",
        "type": "Q4_0",
        "wanted": "Q4_0",
        "bytes": 2 * 10 * 18,
    }


def test_dry_run_tells_of_a_matrix_that_is_needed(quantize, tmp_path):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    said = quantize(model, "Q2_K_S", "--dry-run")
    assert "--imatrix" in said.err and "Q2_K" in said.out
    refused(quantize(model, tmp_path / "o.gguf", "Q2_K_S", code=2), "blk.0.attn_k.weight")
    assert files(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["OUT", "Q9"], 2, "'Q9' is no type"),
        (["OUT"], 2, "TYPE is missing"),
        (["OUT", "Q8_0", "two"], 2, "THREADS"),
        (["OUT", "Q8_0", "9" * 5000], 2, "THREADS"),
        (["OUT", "9" * 5000], 2, "is no type"),
        (["OUT", "Q8_0", "--prune-layers", "9" * 5000], 2, "list of layers"),
        (["OUT", "Q8_0", "--override-kv", "\udcff=int:1"], 2, "its key must be UTF-8"),
        (["OUT", "Q8_0", "2", "3"], 2, "word too many: '3'"),
        (["OUT", "Q8_0", "--max-buffer-size", "0"], 2, "--max-buffer-size"),
        (["OUT", "Q8_0", "--output-tensor-type", "q9"], 2, "'q9' is no tensor type"),
        (["OUT", "Q8_0", "--tensor-type", "attn"], 2, "NAME=TYPE"),
        (["OUT", "Q8_0", "--override-kv", "a=b"], 2, "KEY=TYPE:VALUE"),
        (["OUT", "Q8_0", "--prune-layers", "x"], 2, "list of layers"),
        (["OUT", "Q8_0", "--imatrix", "nowhere.dat"], 3, "nowhere.dat"),
        (["OUT", "Q8_0", "--tensor-type-file", "nowhere.txt"], 3, "nowhere.txt"),
        (["OUT", "Q4_K_M", "--no-fallback"], 2, "rows of 320 values don't divide into Q6_K's blocks"),
        (["OUT", "Q8_0", "--token-embedding-type", "q4_k"], 2, "blocks of 256"),
        (["nowhere/o.gguf", "Q8_0"], 3, "nowhere/o.gguf"),
        (["MODEL", "Q8_0"], 2, "is the source itself"),
        (["TAKEN", "Q8_0"], 3, "is already there"),
    ],
)
def test_refusals(quantize, model, tmp_path, words, code, text):
    places = {"OUT": tmp_path / "o.gguf", "MODEL": model, "TAKEN": tmp_path / "taken"}
    (tmp_path / "taken").write_bytes(b"mine")
    refused(quantize(model, *[places.get(word, word) for word in words], code=code), text)
    assert files(tmp_path) == ["m-F16.gguf", "taken"] and (tmp_path / "taken").read_bytes() == b"mine"


def test_no_fallback_where_none_is_needed(quantize, tmp_path):
    model = write_model(tmp_path / "m.gguf", "heads-4")
    assert quantize(model, tmp_path / "o.gguf", "Q4_0", "--no-fallback", "-q").err == ""


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("name", ["Q8_0", "F16", "F32", "COPY"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite(quantize, tmp_path, kind, name, value):
    rows = np.ones((40, 32), kind)
    rows[37, 5] = value
    model = tmp_path / "m.gguf"
    GgufWriter().keys(KEYS).tensor("b.weight", np.ones(7, np.float32)).tensor("a.weight", rows).write(model)
    refused(quantize(model, tmp_path / "o.gguf", name, code=11), f"tensor 'a.weight', row 37, column 5: {value} is not")
    assert files(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("ggml_type", "block", "size", "kind", "at"),
    [(28, 1, 8, "<f8", 0), (9, 32, 36, "<f2", 0), (9, 32, 36, "<f2", 1), (15, 256, 292, "<f4", 0)],
    ids=["F64", "Q8_1-d", "Q8_1-s", "Q8_K"],
)
@pytest.mark.parametrize("name", ["Q8_0", "COPY"])
def test_floats_of_types_that_are_only_copied(quantize, tmp_path, ggml_type, block, size, kind, at, name):
    """In row 3 of 4, the 6th of 8 blocks. What is no float may hold any bits."""
    blocks = np.full((4, 8, size), 0xFF, np.uint8)
    floats = np.dtype(kind).itemsize * (at + 1)
    blocks[:, :, :4] = 0
    blocks[:, :, :floats] = 0
    model, out = tmp_path / "m.gguf", tmp_path / "o.gguf"

    def write():
        writer = GgufWriter().keys(KEYS).tensor("b.weight", np.ones((2, 32), np.float16))
        writer.raw_tensor("a.bias", (4, 8 * block), ggml_type, blocks.tobytes()).write(model)

    write()
    quantize(model, out, name, "-q")
    out.unlink()
    blocks[3, 5, :floats] = np.array([0] * at + [-np.inf], kind).view(np.uint8)
    write()
    refused(quantize(model, out, name, code=11), f"tensor 'a.bias', row 3, column {5 * block}: -inf is not finite")
    assert files(tmp_path) == ["m.gguf"]


def test_values_that_are_too_large(quantize, tmp_path):
    rows = np.float32([[1] * 32, [1] * 31 + [1e9]])
    GgufWriter().keys(KEYS).tensor("a.weight", rows).write(tmp_path / "m.gguf")
    refused(quantize(tmp_path / "m.gguf", tmp_path / "o.gguf", "F16", code=11), "row 1, column 31: 1000000000.0 is too")
    refused(quantize(tmp_path / "m.gguf", tmp_path / "o.gguf", "Q8_0", code=11), "'a.weight' has values in rows 0 to 1")
    assert files(tmp_path) == ["m.gguf"]


def test_split_files(quantize, tmp_path):
    parts = [{"blk.0.a.weight": np.ones((2, 32), np.float16)}, {"blk.0.b.weight": np.ones((3, 64), np.float16)}]
    first, second = write_split(tmp_path, "m", KEYS, parts)
    quantize(first, tmp_path / "o.gguf", "Q8_0", "--keep-split", "-q")
    assert files(tmp_path)[2:] == ["o-00001-of-00002.gguf", "o-00002-of-00002.gguf"]
    # The second part has no room: neither stays.
    (tmp_path / "p-00002-of-00002.gguf").mkdir()
    quantize(first, tmp_path / "p.gguf", "Q8_0", "--keep-split", code=3)
    assert [name for name in files(tmp_path) if name.startswith((".", "p"))] == ["p-00002-of-00002.gguf"]
    second.unlink()
    refused(quantize(first, tmp_path / "q.gguf", "Q8_0", code=11), second.name)


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="no signals here")
def test_the_end_that_somebody_asks_for(tmp_path):
    rows = np.ones((4 << 10, 4 << 10), np.float16)
    GgufWriter().keys(KEYS).tensor("a.weight", rows).tensor("b.weight", rows).write(tmp_path / "m.gguf")
    words = [*COMMAND, "quantize", str(tmp_path / "m.gguf"), str(tmp_path / "o.gguf"), "Q4_K_S", "1"]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL) as run:
        until = time.monotonic() + 60
        while run.poll() is None and len(files(tmp_path)) < 2 and time.monotonic() < until:
            time.sleep(0.005)
        run.terminate()
        assert run.wait(60) == 143
    assert not [name for name in files(tmp_path) if "o.gguf" in name]
