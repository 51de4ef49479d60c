"""Importance matrices of experts: each from the rows that it was chosen for, the bits of the definition."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.api import imatrix
from kinetic.api.imatrix_file import Matrix, to_gguf
from kinetic.api.perplexity import Settings
from kinetic.api.scorer import Scorer
from kinetic.backends.reference import experts as reference
from kinetic.engine import Engine
from kinetic.loader import open_model_file
from tests.support.tiny_models import TEXT, write_tiny_mixture

EXPERTS = 6


@pytest.fixture(scope="module", params=["mixtral", "qwen3moe", "granitemoe"])
def path(request, tmp_path_factory):
    return write_tiny_mixture(tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def tokens(path):
    with Scorer(path, threads=1, pack_cache=False) as scorer:
        return scorer.encode(TEXT)[:28]


def collected(path, tokens, rows=512, threads=1, device="cpu"):
    watched = imatrix.inputs(False)
    collector = imatrix.Collector(watched)
    with Scorer(path, threads=threads, pack_cache=False, watch=watched, device=device) as scorer:
        imatrix.collect(scorer, tokens, Settings(14, rows=rows), collector, with_perplexity=False)
    return collector.into(Matrix(14))


def test_sums_are_those_of_the_reference(path, tokens, monkeypatch):
    """What the reference's own experts multiply, noted there, row by row in the order of the text."""
    expected, counts, multiply = {}, {}, reference.linear

    def noting(x, weight):
        number = (weight.data.ctypes.data - whole[weight.name].data.ctypes.data) // weight.data.nbytes
        for row in x.astype(np.float64):
            known = expected.setdefault((weight.name, number), np.zeros(len(row)))
            known += row * row
        counts[weight.name, number] = counts.get((weight.name, number), 0) + len(x)
        return multiply(x, weight)

    monkeypatch.setattr(reference, "linear", noting)
    with open_model_file(path) as file:
        whole = file.weights
        engine = Engine(file.gguf, file.weights, backend="reference")
        for chunk in (tokens[:14], tokens[14:]):
            list(engine.passes(chunk))
    found = collected(path, tokens)
    names = [f"blk.{i}.ffn_{part}_exps.weight" for i in range(2) for part in ("gate", "up", "down")]
    assert {name for name, _ in expected} == set(names) <= set(found.entries)
    for name in names:
        entry = found.entries[name]
        assert entry.counts.tolist() == [counts.get((name, number), 0) for number in range(EXPERTS)]
        assert entry.counts.sum() == 2 * len(tokens)
        squares = entry.squares.reshape(EXPERTS, -1)
        for number in range(EXPERTS):
            assert squares[number].tobytes() == expected.get((name, number), np.zeros(squares.shape[1])).tobytes()


def test_the_same_bytes_for_every_batch_size_and_number_of_threads(path, tokens):
    whole = to_gguf(collected(path, tokens))
    for rows, threads in ((1, 2), (5, 1), (512, 2)):
        assert to_gguf(collected(path, tokens, rows, threads)) == whole
    assert to_gguf(collected(path, tokens, device="reference")) == whole


def test_the_model_computes_what_it_always_does(path, tokens):
    watched = imatrix.inputs(False)
    with Scorer(path, threads=1, pack_cache=False) as plain, Scorer(path, pack_cache=False, watch=watched) as seen:
        for one, other in zip(plain.passes(tokens), seen.passes(tokens), strict=True):
            assert one.tobytes() == other.tobytes()
