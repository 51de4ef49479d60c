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

MODELS = {
    "bert-mean": (0.01, 0.01),
    "bert-cls": (0.01, 0.01),
    "nomic-bert": (0.01, 2e-4),
    "gemma-embedding": (0.01, 0.01),
    "gemma-embedding-dense": (0.01, 0.01),
    "qwen3-embedding": (0.01, 2e-4),
}
"""Largest difference of an element, and the same with float32 keys; about twice what was measured."""

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
        assert difference <= MODELS[name][0]
        assert cosine > 0.9999


@pytest.mark.parametrize("name", MODELS)
def test_formula(golden, name, monkeypatch):
    """The arithmetic apart from the rounding of keys and values."""
    monkeypatch.setattr(reference_ops, "Cache", FloatCache)
    difference, cosine = compare(golden / "archs" / name, "none", "reference")
    print(f"{name}: {difference:.1e}, cosine {cosine:.7f}")
    assert difference <= MODELS[name][1]
    assert cosine > 0.9999
