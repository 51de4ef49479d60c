"""Whole models on a device: the CPU's bits, however the rows come, and what there are no kernels for is refused."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.api import Model
from kinetic.api.verify import Checker
from kinetic.backends import open_backend
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu import choose as choosing
from kinetic.backends.gpu import program as program_module
from kinetic.engine import EmbeddingEngine
from kinetic.errors import KineticError, UnsupportedModel, UsageError
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same, compile_all
from tests.support.blocks import integers
from tests.support.split_models import load, rows
from tests.support.tiny_encoders import write_tiny_encoder
from tests.support.whole_models import WRITERS

FAMILIES = ("llama", "floats", "gemma3", "qwen2", "phi3", "qwen3moe", "gpt-oss", "deepseek2")
RECURRENT = ("lfm2", "nemotron_h", "qwen35")
LENGTH, END = 80, 262
"""Past windows of 64 keys; then, by a jump that leaves positions out, past the first chunk of keys."""


@pytest.mark.parametrize("family", [*FAMILIES, *RECURRENT], indirect=True)
def test_a_model_has_the_bits_of_the_cpu(device, family):
    """In passes of every kind of size, and then from a snapshot of the CPU's, behind the end of a chunk."""
    compile_all(open_backend("cpu").isa)
    ours, theirs = load(GpuBackend(device), family), load(open_backend("cpu", threads=1), family)
    tokens = [int(token) for token in integers(7, 0, family.vocab_size, END)]
    expected = theirs.run(rows(tokens[:LENGTH], 0))
    found, start = [], 0
    for count in (1, 33, 7, 31, 8):
        found.append(ours.run(rows(tokens[start : start + count], start)))
        start += count
    assert_same(np.concatenate(found), expected)

    theirs.run(rows(tokens[LENGTH : END - 9], LENGTH, wanted=False))
    saved = theirs.snapshot(0)
    ours.restore(3, saved)
    last = rows(tokens[END - 9 :], END - 9, 3)
    assert_same(ours.run(last), theirs.run(rows(tokens[END - 9 :], END - 9)))
    again = ours.snapshot(3)
    for layer, keys in theirs.snapshot(0).keys.items():
        assert np.array_equal(again.keys[layer].view(np.uint16), keys.view(np.uint16))
        values = theirs.snapshot(0).values[layer]
        assert np.array_equal(again.values[layer].view(np.uint16), values.view(np.uint16))
    theirs.close()


@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_neighbours_and_the_way_back_change_no_bit(device, family):
    """Rows of two sequences in one pass; a sequence cut off and written anew, in pages that others had."""
    program = load(GpuBackend(device), family)
    a, b = ([int(token) for token in integers(seed, 0, family.vocab_size, 20)] for seed in (1, 2))
    alone = [program.run(rows(tokens, 0, number)) for number, tokens in enumerate((a, b))]
    assert [program.length(number) for number in (0, 1, 2)] == [20, 20, 0]
    for number in range(10, 15):  # more pages than there were: those before are copied
        program.run(rows(b[:1], 0, number))
    assert program.truncate(0, 10) == 10
    assert_same(program.run(rows(a[10:], 10)), alone[0][10:])
    assert program.truncate(1, 0) == program.truncate(0, 0) == 0
    mixed = program.run(
        Batch((*a[:5], *b[:9], *a[5:6]), (*range(5), *range(9), 5), (*(4,) * 5, *(5,) * 9, 4), (0, 4, 5, 13, 14))
    )
    assert_same(mixed, np.stack([alone[0][0], alone[0][4], alone[1][0], alone[1][8], alone[0][5]]))
    assert program.truncate(5, 4) == 4
    assert_same(program.run(rows(b[4:], 4, 5)), alone[1][4:])
    assert program.run(rows(b[:2], 0, 6, wanted=False)).shape == (0, family.vocab_size)


@pytest.mark.parametrize("family", ["floats"], indirect=True)
def test_a_closed_program_says_so(device, family):
    program = load(GpuBackend(device), family)
    program.close()
    with pytest.raises(KineticError, match="closed"):
        program.run(rows([1], 0))


@pytest.mark.parametrize("family", ["floats"], indirect=True)
def test_long_batches_are_cut(device, family, monkeypatch):
    """Into passes, and attention into launches, of a few rows each."""
    tokens = [int(token) for token in integers(3, 0, family.vocab_size, 21)]
    expected = load(GpuBackend(device), family).run(rows(tokens, 0))
    monkeypatch.setattr("kinetic.backends.gpu.program.CAPACITY", 8)
    monkeypatch.setattr("kinetic.backends.gpu.attention.PARTIAL_BYTES", 4 * 6 * 22 * 3)
    assert_same(load(GpuBackend(device), family).run(rows(tokens, 0)), expected)


@pytest.mark.parametrize("family", RECURRENT, indirect=True)
def test_states_go_back_and_change_no_neighbour(device, family):
    """From a mark; the other sequence's rows lie between."""
    program = load(GpuBackend(device), family)
    tokens = [int(token) for token in integers(5, 0, family.vocab_size, 16)]
    expected = program.run(rows(tokens, 0))
    between = [tokens[0], *(token for t in range(4) for token in (tokens[t + 1], tokens[t]))]
    where = (0, 1, 0, 2, 1, 3, 2, 4, 3), (7, 7, 8, 7, 8, 7, 8, 7, 8)
    assert_same(program.run(Batch(tuple(between), *where, (7, 8))), np.stack([expected[4], expected[3]]))
    program.mark(7)
    program.run(rows(tokens[5:9], 5, 7))
    assert program.truncate(7, 8) == 5
    assert_same(program.run(rows(tokens[5:], 5, 7)), expected[5:])


@pytest.mark.parametrize(("name", "pooling"), [("bert", ""), ("gemma-embedding", "mean"), ("qwen3", "rank")])
def test_vectors_have_the_bits_of_the_cpu(device, tmp_path, name, pooling):
    """Layer norms, attention both ways, means; texts beside each other, longer than a chunk of keys."""
    texts = [integers(length, 5, 100, length).tolist() for length in (3, 270, 40)]
    found = []
    with open_model_file(write_tiny_encoder(tmp_path / "model.gguf", name)) as file:
        for backend in ("opencl", "cpu"):
            engine = EmbeddingEngine(file.gguf, file.weights, pooling=pooling, backend=backend)
            found.append(list(engine.vectors(texts)))
            engine.close()
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs)


@pytest.fixture
def without_ropes(monkeypatch):
    monkeypatch.setattr(program_module, "OPS", program_module.OPS - {"rope"})


@pytest.mark.parametrize("family", ["floats"], indirect=True)
def test_what_has_no_kernel_is_named(device, family, without_ropes):
    with pytest.raises(UnsupportedModel, match=r"no kernels for rope on opencl devices .* --device cpu"):
        load(GpuBackend(device), family)


@pytest.mark.parametrize(("here", "there"), [("opencl", "cpu"), ("cpu", "opencl")])
def test_receipts_of_one_device_verify_on_another(device, folder, tmp_path, here, there):
    path = WRITERS["floats"](folder / "receipt.gguf")
    with Model(path, device=here, pack_cache=False) as model:
        assert model.device == here and model.device_name
        answer = model.generate("one", raw=True, max_tokens=5, seed=3, commit_logits=True)
        answer.save_receipt(tmp_path / "receipt.json")
    assert answer.receipt()["claims"]["device_class"] == here
    with Checker(path, device=there, pack_cache=False) as checker:
        assert checker.verify(tmp_path / "receipt.json").exit_code == 0


def test_what_the_best_device_cannot_do_the_cpu_does(device, folder, monkeypatch, without_ropes):
    path = WRITERS["floats"](folder / "fallback.gguf")
    monkeypatch.setattr(choosing, "best", lambda progress: "opencl")
    lines: list[str] = []
    with Model(path, device="auto", pack_cache=False, progress=lines.append) as model:
        assert model.device == "opencl" and " with 1 of " in model.device_name
    assert [
        line for line in lines if line.startswith("there are no kernels for rope on opencl devices: the last 1 of ")
    ]


def test_the_best_device_is_a_gpu(monkeypatch, opencl):
    """Where there is none it is the CPU, with a line for each that was passed over."""
    lines: list[str] = []
    monkeypatch.setattr(opencl, "graphics", list)
    assert choosing.best(lines.append) == "cpu"
    assert [line.partition(":")[0] for line in lines] == ["cuda is passed over", "opencl is passed over"]
    first = opencl.devices()[0]
    monkeypatch.setattr(opencl, "graphics", lambda: [first])
    assert choosing.best() == "opencl:0"


@pytest.mark.parametrize("name", ["opencl:", "opencl:x", "opencl:-1", "cuda:1:2", "gpu", "opencl:1234"])
def test_names_that_mean_nothing(name):
    with pytest.raises(UsageError, match=r"unknown device .*opencl\[:N\]"):
        open_backend(name)


def test_a_number_that_no_device_has(opencl):
    with pytest.raises(UsageError, match="there is no OpenCL device 999; this machine has 0: "):
        open_backend("opencl:999")
