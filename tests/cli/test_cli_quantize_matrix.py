"""What ``kinetic quantize`` says of an importance matrix that is used in part, or not at all."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from kinetic.cli import main
from tests.support.gguf_writer import GgufWriter
from tests.support.quantize_models import write_model


@pytest.fixture
def quantize(tmp_path, capsys):
    """``quantize(words..., type="Q4_K")`` -> (standard output, standard error) of a model with 114 matrices."""
    model = write_model(tmp_path / "m.gguf", "heads-4")

    def quantize(*words, type="Q4_K_S", source=model, code=0):
        out = tmp_path / "o.gguf"
        assert main(["quantize", "-q", *map(str, words), str(source), str(out), type]) == code
        out.unlink(missing_ok=True)
        return capsys.readouterr()

    return quantize


@pytest.fixture
def matrix(tmp_path):
    """``matrix({name: values})``: a file of the older format."""

    def matrix(entries):
        raw = struct.pack("<i", len(entries))
        for name, values in entries.items():
            raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, len(values))
            raw += np.float32(values).tobytes()
        path = tmp_path / "m.dat"
        path.write_bytes(raw)
        return path

    return matrix


FITTING = {f"blk.{layer}.attn_q.weight": [1.0] * 256 for layer in range(16)}


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_matrix_of_some_tensors(quantize, matrix, how):
    path = matrix(FITTING | {"token_embd.weight": [1.0]})
    assert "98 of 114 tensors had no importance (as in output.weight)\n" in quantize("--imatrix", path, *how).err
    said = json.loads(quantize("--imatrix", path, "--json", *how).out)
    assert said["without_importance"] == {"tensors": 98, "of": 114, "example": "output.weight"}
    # Values that stay floats need none.
    assert quantize("--imatrix", path, *how, type="BF16").err == ""


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
@pytest.mark.parametrize("entries", [{"model.layers.0.q": [1.0] * 256}, {"token_embd.weight": [1.0] * 255}])
def test_a_matrix_of_another_model(quantize, matrix, how, entries):
    path = matrix(entries)
    assert f"warning: {path} was not used, since it fits no tensor" in quantize("--imatrix", path, *how).err
    assert json.loads(quantize("--imatrix", path, "--json", *how).out)["without_importance"]["tensors"] == 114


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_weights_to_include(quantize, matrix, how):
    path = matrix(FITTING)
    err = quantize("--imatrix", path, "--include-weights", "nothing", *how).err
    assert "warning: --include-weights or --exclude-weights leave no tensor of" in err
    for option in ("--include-weights", "--exclude-weights"):
        assert "do nothing without --imatrix" in quantize(option, "attn", *how).err


def test_nothing_is_said_where_all_is_well(quantize, tmp_path, matrix):
    rows = np.ones((2, 256), np.float16)
    source = GgufWriter().key("general.architecture", "llama").tensor("a.weight", rows).write(tmp_path / "a.gguf")
    path = matrix({"a.weight": [1.0] * 256})
    assert quantize("--imatrix", path, source=source).err == ""
    assert json.loads(quantize("--json", source=source).out)["without_importance"] is None


def test_an_importance_that_is_too_large(quantize, tmp_path, matrix):
    rows = np.ones((2, 256), np.float16)
    source = GgufWriter().key("general.architecture", "llama").tensor("a.weight", rows).write(tmp_path / "a.gguf")
    said = quantize("--imatrix", matrix({"a.weight": [3e38] * 256}), source=source, type="IQ3_S", code=11)
    assert "in rows 0 to 1, or an importance, that are too large for IQ3_S" in said.err and said.err.count("\n") == 1
