"""A model shared between the CPU and a device: the CPU's bits at every cut, whatever else is done to its sequences."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic import models
from kinetic.backends import open_backend
from kinetic.backends import split as split_module
from kinetic.backends.cuts import find_cuts, state_of
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.graph import trace
from kinetic.backends.split import SplitProgram
from kinetic.engine import EmbeddingEngine, Engine
from kinetic.errors import KineticError, OutOfMemory
from kinetic.loader import open_model_file
from kinetic.types import Batch, Request, Sampling
from tests.support.backends import assert_same
from tests.support.blocks import integers
from tests.support.split_models import LENGTH, OnReference, beside_cpu, load, rows, some_tokens
from tests.support.tiny_encoders import write_tiny_encoder

FAMILIES = ("llama", "floats", "gemma3", "gemma4", "qwen3moe", "gpt-oss", "deepseek2", "lfm2", "nemotron_h", "qwen35")
SEVERAL = ("llama", "gemma4", "lfm2", "nemotron_h", "qwen35")
"""Keys alone, keys of other layers, states between layers of keys, layers with nothing of their own, large states."""


@pytest.fixture
def family(file):
    return models.build(file.gguf, file.weights)


# ---- where a cut is possible


@pytest.mark.parametrize(
    ("file", "layers", "possible"),
    [
        ("llama", 3, [1, 2]),
        ("gemma4", 7, [1, 2, 6]),  # layers 4 and 5 read what 2 and 3 keep
        ("nemotron_h", 0, None),
    ],
    indirect=["file"],
)
def test_cuts_are_between_layers(family, layers, possible):
    nodes = trace(family.forward)
    cuts = find_cuts(nodes)
    if possible is not None:
        assert (cuts.layers, sorted(cuts.cuts)) == (layers, possible)
    embedding = next(node.width for node in nodes if node.op == "embed")
    crossing = {cut.crossing[0].width for cut in cuts.cuts.values() if len(cut.crossing) == 1}
    assert crossing <= {embedding} and all(nodes[cut.at].op != "outputs" or n == cuts.layers - 1
                                           for n, cut in cuts.cuts.items())  # fmt: skip


@pytest.mark.parametrize("file", ["llama"], indirect=True)
def test_a_drafter_is_not_cut(family):
    cuts = find_cuts(trace(lambda ops: ops.outputs(ops.given(64))))
    assert cuts.at_least(0) == 0 and cuts.at_least(1) == cuts.layers == 1


# ---- bits


@pytest.mark.parametrize("file", FAMILIES, indirect=True)
def test_every_cut_has_the_bits_of_the_cpu(device, family):
    """In passes of several sizes, behind a way back, and beside another sequence."""
    whole, cuts = load(open_backend("cpu", threads=1), family), find_cuts(trace(family.forward))
    tokens, others = some_tokens(family), some_tokens(family, 9, seed=8)
    expected, aside = whole.run(rows(tokens, 0)), whole.run(rows(others, 0, 1))
    assert cuts.cuts
    for front in cuts.cuts:
        backend = beside_cpu(GpuBackend(device), cuts.layers - front)
        program = load(backend, family)
        assert isinstance(program, SplitProgram) and backend.device_class == "cpu+opencl"
        assert f"with {cuts.layers - front} of {cuts.layers} layers" in backend.device_name
        assert backend.engine_id.endswith(f"@{front}") and program.vocab_size == family.vocab_size
        assert_same(program.run(rows(tokens[:9], 0)), expected[:9])
        program.mark(0)
        assert_same(program.run(rows(tokens[9:17], 9)), expected[9:17])
        assert_same(program.run(rows(others, 0, 1)), aside)
        kept = program.truncate(0, 12)
        assert kept == (9 if family.states else 12) and program.length(0) == kept
        mixed = Batch(
            (*tokens[kept:], others[0]), (*range(kept, LENGTH), 0), (*(0,) * (LENGTH - kept), 2), (0, 1, LENGTH - kept)
        )
        assert_same(program.run(mixed), np.stack([expected[kept], expected[kept + 1], aside[0]]))
        assert program.length(0) == LENGTH and program.length(1) == 9
        program.close()
    whole.close()


@pytest.mark.parametrize("file", SEVERAL, indirect=True)
def test_what_is_kept_is_both_halves(family):
    """Snapshots, blocks of keys with states, and branches, with the CPU's and the reference's halves."""
    whole, cuts = load(open_backend("cpu", threads=1), family), find_cuts(trace(family.forward))
    tokens = some_tokens(family)
    expected = whole.run(rows(tokens, 0))
    front = sorted(cuts.cuts)[len(cuts.cuts) // 2]
    program = load(beside_cpu(OnReference(), cuts.layers - front), family)
    program.run(rows(tokens[:20], 0, wanted=False))
    saved, states, kept = program.snapshot(0), program.read_states(0), program.read_kept(0, 0, 20)
    assert len(kept) == program.kept_bytes(20) and len(states) == program.state_bytes
    assert {spec.layer for spec in family.attention} == set(saved.keys) and set(saved.states) == set(family.states)
    whole.restore(5, saved)
    assert_same(whole.run(rows(tokens[20:], 20, 5)), expected[20:])
    program.restore(5, saved)
    assert_same(program.run(rows(tokens[20:], 20, 5)), expected[20:])
    program.truncate(6, 0)
    program.write_kept(6, 0, 20, kept)
    program.stand(6, 20, states if family.states else None)
    assert program.length(6) == 20
    assert_same(program.run(rows(tokens[20:], 20, 6)), expected[20:])
    assert program.can_keep and program.can_branch == (not family.states)
    if program.can_branch:
        program.fork(0, 9, 18)
        assert_same(program.run(rows(tokens[18:], 18, 9)), expected[18:])
        program.take_over(9, 0)
        assert program.length(0) == LENGTH
    row = expected[3]
    for k, floor in ((1, np.inf), (40, np.inf), (0, 1.0)):
        for ours, theirs in zip(program.candidates(row, k, floor), whole.candidates(row, k, floor), strict=True):
            assert np.array_equal(ours, theirs)
    assert_same(program.exp(row), whole.exp(row))
    program.close()


@pytest.mark.parametrize("file", ["lfm2"], indirect=True)
def test_neither_half_goes_on_alone(family, monkeypatch):
    """A row that the states are not at is refused before the first half runs; half a snapshot is none."""
    cuts = find_cuts(trace(family.forward))
    program = load(beside_cpu(OnReference(), cuts.layers - min(cuts.cuts)), family)
    tokens = some_tokens(family)
    expected = program.run(rows(tokens, 0))
    program.truncate(0, 0)
    program.run(rows(tokens[:20], 0))
    with pytest.raises(KineticError, match="its states are at 20"):
        program.run(rows(tokens[:3], 5))
    assert_same(program.run(rows(tokens[20:], 20)), expected[20:])
    with pytest.raises(KineticError, match="takes 0 numbers"):
        program.run(rows(tokens[:1], 0), np.zeros((1, 3), np.float32))
    saved = program.snapshot(0)
    monkeypatch.setattr(program._back, "restore", lambda *_: (_ for _ in ()).throw(KineticError("broken off")))
    with pytest.raises(KineticError, match="broken off"):
        program.restore(0, saved)
    assert program.length(0) == 0
    monkeypatch.setattr(program._back, "run", lambda *_: (_ for _ in ()).throw(OutOfMemory("no pages")))
    with pytest.raises(OutOfMemory):
        program.run(rows(tokens[:4], 0))
    assert program.length(0) == 0


@pytest.mark.parametrize("file", ["lfm2"], indirect=True)
def test_halves_with_other_marks(family):
    """One has room for two marks, and has to go further back than the other."""
    cuts, tokens = find_cuts(trace(family.forward)), some_tokens(family)
    front = next(n for n, cut in cuts.cuts.items() if {*map(state_of, trace(family.forward)[: cut.at])} - {None})
    program = load(beside_cpu(OnReference(), cuts.layers - front), family)
    program._front._states.most_marks = 2
    expected = []
    for start in range(0, 20, 4):
        expected.append(program.run(rows(tokens[start : start + 4], start)))
        program.mark(0)
    assert program.truncate(0, 15) == 4
    assert program._front.length(0) == program._back.length(0) == 4
    assert_same(program.run(rows(tokens[4:20], 4)), np.concatenate(expected[1:]))
    program.close()


@pytest.mark.parametrize("file", ["llama", "lfm2", "qwen35"], indirect=True)
def test_answers_with_drafts_and_warm_starts(file, monkeypatch):
    """Requests that go on from one another, drafts that are right and wrong, and the taps of all layers."""
    monkeypatch.setattr(split_module, "open_backend", lambda name, **o: beside_cpu(OnReference(), o["gpu_layers"]))
    asked = [(1, 5, 9, 5, 9, 5, 9), (1, 5, 9, 5, 9, 5, 9, 5, 9, 4), (1, 5, 9, 5, 4)]
    requests = [Request(prompt, Sampling(seed=3, temperature=0.4), max_tokens=12) for prompt in asked]
    found = []
    for backend, layers in (("cpu", None), ("opencl", 2)):
        engine = Engine(file.gguf, file.weights, backend=backend, gpu_layers=layers, threads=1)
        found.append([[step.token for step in engine.generate(request)] for request in requests])
        if layers:
            assert engine.identity.device_class == "cpu+reference" and engine._loaded.can_keep
            assert engine.drafter and (engine.reused or engine._loaded.state_bytes)
        engine.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "pooling"), [("bert", ""), ("gemma-embedding", "mean")])
def test_vectors(device, tmp_path, monkeypatch, name, pooling):
    """Rows that see later ones, and means, in both halves."""
    monkeypatch.setattr(split_module, "open_backend", lambda _, **o: beside_cpu(GpuBackend(device), o["gpu_layers"]))
    texts = [integers(length, 5, 100, length).tolist() for length in (3, 40)]
    found = []
    with open_model_file(write_tiny_encoder(tmp_path / "model.gguf", name)) as file:
        for backend, layers in (("opencl", 2), ("cpu", None)):
            engine = EmbeddingEngine(file.gguf, file.weights, pooling=pooling, backend=backend, gpu_layers=layers)
            assert engine.identity.device_class == ("cpu+opencl" if layers else "cpu")
            found.append(list(engine.vectors(texts)))
            engine.close()
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs)
