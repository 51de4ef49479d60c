"""A text's vector has the bits that it has alone: whatever texts are beside it, in whatever order, on any threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kinetic.engine import EmbeddingEngine
from kinetic.loader import open_model_file
from tests.support.backends import assert_same
from tests.support.blocks import integers
from tests.support.tiny_encoders import KINDS, write_tiny_encoder
from tests.support.tiny_hybrids import write_tiny_hybrid
from tests.support.tiny_recurrent import write_tiny_recurrent

LENGTHS = (1, 2, 7, 8, 9, 31, 32, 33, 63, 65, 255, 257, 600)
"""The last is longer than a pass of short texts."""

TEXTS = [integers(200 + length, 5, 100, length).tolist() for length in LENGTHS]
POOLINGS = {
    "bert": ("", "mean", "rank"),
    "nomic-bert": ("", "none"),
    "gemma-embedding": ("", "last"),
    "qwen3": ("", "mean"),
}
CASES = [(name, pooling) for name in KINDS for pooling in POOLINGS[name]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("encoders")
    for name in KINDS:
        write_tiny_encoder(made / f"{name}.gguf", name)
    return made


@contextmanager
def engine_of(path: Path, pooling: str, backend: str = "cpu", threads: int = 1) -> Iterator[EmbeddingEngine]:
    with open_model_file(path) as file:
        engine = EmbeddingEngine(file.gguf, file.weights, pooling=pooling, backend=backend, threads=threads)
        try:
            yield engine
        finally:
            engine.close()


@pytest.mark.parametrize("name, pooling", CASES)
def test_vectors_do_not_depend_on_their_neighbours(folder, name, pooling):
    path = folder / f"{name}.gguf"
    with engine_of(path, pooling) as engine:
        alone = [vectors for tokens in TEXTS for vectors in engine.vectors([tokens])]
    assert len(np.unique(np.concatenate(alone)[:, 0])) > len(TEXTS) - 2
    assert all(np.isfinite(vectors).all() for vectors in alone)
    orders = (range(len(TEXTS)), range(len(TEXTS) - 1, -1, -1), [3, 0, 0, 5, 12, 1, 3])
    for threads in (2, 3):
        with engine_of(path, pooling, threads=threads) as engine:
            for order in orders:
                found = engine.vectors([TEXTS[i] for i in order])
                for i, vectors in zip(order, found, strict=True):
                    assert_same(vectors, alone[i], f"of {LENGTHS[i]} tokens with {threads} threads")
    with engine_of(path, pooling, "reference") as engine:
        few = [4, 1, 5]
        for i, vectors in zip(few, engine.vectors([TEXTS[i] for i in few]), strict=True):
            assert_same(vectors, alone[i], f"of {LENGTHS[i]} tokens by the definition")


def test_rows_see_what_stands_behind_them(folder):
    """The first row of an encoder changes with the last token; that of a model that writes text does not."""
    tokens = TEXTS[5]
    other = [*tokens[:-1], tokens[-1] + 1]
    for name in KINDS:
        with engine_of(folder / f"{name}.gguf", "cls") as engine:
            first, second = engine.vectors([tokens, other])
        assert (first != second).any() == (name != "qwen3")


@pytest.mark.parametrize("name", ["lfm2", "granitehybrid"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_recurrent_models_make_vectors(tmp_path, name, pooling):
    """Their states come along; of a mean a pass is longer than what a thread has room for at once."""
    path = (write_tiny_recurrent if name == "lfm2" else write_tiny_hybrid)(tmp_path / "m.gguf", name)
    texts = [TEXTS[i] for i in (2, 0, 6, 12)]
    with engine_of(path, pooling, "reference") as engine:
        expected = list(engine.vectors(texts[:3]))
    with engine_of(path, pooling, threads=2) as engine:
        found = list(engine.vectors(texts))
        for vector, wanted in zip(found, expected, strict=False):
            assert_same(vector, wanted)
        (alone,) = engine.vectors(texts[3:])
        assert_same(found[3], alone)
    if pooling == "mean":
        with engine_of(path, "none", threads=1) as engine:
            (rows,) = engine.vectors(texts[3:])
        total = np.zeros(rows.shape[1], np.float32)
        for row in rows:
            total += row
        assert_same(alone[0], total / np.float32(len(rows)))
