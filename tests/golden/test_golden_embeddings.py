"""Small random embedding models against llama.cpp: rows, and vectors by every pooling.

llama.cpp's encoders keep no keys, so it attends to float32 ones, and its GELU comes from a table of float16.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic.backends.reference import ops as reference_ops
from kinetic.engine import EmbeddingEngine
from kinetic.loader import open_model_file
from tests.golden.test_golden_archs import FloatCache

MODELS = ("bert-mean", "bert-cls", "nomic-bert", "gemma-embedding", "gemma-embedding-dense", "qwen3-embedding")
TOLERANCE = 0.01
"""Largest difference of an element; twice what was measured at most. llama.cpp's keys are float32 here."""

EXACT = {"bert-cls": 3e-3, "nomic-bert": 2e-5, "gemma-embedding": 4e-3}
"""The same with float32 keys on both sides; BERT and Gemma have GELU."""

POOLINGS = ("none", "mean", "cls", "last", "")


def compare(folder, pooling, backend):
    """(largest difference, lowest cosine) of vectors, ``pooling`` "" being the file's own."""
    tokens = json.loads((folder / "tokens.json").read_text())["tokens"]
    with open_model_file(folder / "model.gguf") as file:
        engine = EmbeddingEngine(file.gguf, file.weights, pooling=pooling, backend=backend, threads=2)
        (found,) = engine.vectors([tokens])
        engine.close()
    expected = np.atleast_2d(np.load(folder / f"emb_{pooling or 'model'}.npy"))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max()), float(((found * expected).sum(axis=1) / norms).min())


@pytest.mark.parametrize("name", MODELS)
def test_vectors(golden, name):
    for pooling in POOLINGS:
        difference, cosine = compare(golden / "archs" / name, pooling, "cpu")
        print(f"{name} {pooling or 'own'}: {difference:.1e}, cosine {cosine:.7f}")
        assert difference <= TOLERANCE
        assert cosine > 0.9999


@pytest.mark.parametrize("name", EXACT)
def test_formula(golden, name, monkeypatch):
    """The arithmetic apart from the rounding of keys and values."""
    monkeypatch.setattr(reference_ops, "Cache", FloatCache)
    difference, cosine = compare(golden / "archs" / name, "none", "reference")
    print(f"{name}: {difference:.1e}, cosine {cosine:.7f}")
    assert difference <= EXACT[name]
    assert cosine > 0.9999
