"""Answers with the shortlist are those without it, step by step; what needs all logits gets them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from kinetic.backends.cpu import shortlist
from kinetic.engine import Engine
from kinetic.loader import open_model_file
from kinetic.types import SPEED_UPS, Request, Sampling
from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

GREEDY = Sampling(temperature=0.0)

WRITERS = {
    "gemma3": lambda path: write_tiny_gemma3(path),
    "llama": lambda path: write_tiny_llama(path, types={"": "Q8_0"}),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(shortlist, "SMALLEST", 0)
    monkeypatch.setattr(shortlist, "AFTER", 0)
    monkeypatch.setattr(shortlist, "LEADERS", 8)


@pytest.fixture(scope="module", params=WRITERS)
def model(request, tmp_path_factory):
    path = WRITERS[request.param](tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf")
    with open_model_file(path) as file:
        yield file


@pytest.fixture
def asked(monkeypatch):
    """How many of the best logits each pass was to find."""
    seen = []
    begin = shortlist.Shortlist.begin

    def noted(self, best, **more):
        seen.append(begin(self, best, **more))
        return seen[-1]

    monkeypatch.setattr(shortlist.Shortlist, "begin", noted)
    return seen


def steps(model, sampling, *, threads=1, off=("drafts",), backend="cpu", digest=None):
    engine = Engine(model.gguf, model.weights, backend=backend, threads=threads, off=off)
    try:
        request = Request(tuple(range(5, 25)), sampling, max_tokens=24)
        return list(engine.generate(request, digest=digest))
    finally:
        engine.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_steps(model, asked, threads):
    found = steps(model, GREEDY, threads=threads)
    assert asked == [0, *[2] * 23], "no first token waits for a copy"
    del asked[:]
    assert found == steps(model, GREEDY, threads=threads, off=SPEED_UPS)
    assert asked == [0] * 24
    assert found == steps(model, GREEDY, threads=threads, off=())
    if threads == 1:
        assert found == steps(model, GREEDY, backend="reference")


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8, seed=3),
        Sampling(temperature=0.0, logit_bias=((7, 1.5),)),
        Sampling(temperature=0.0, repeat_penalty=1.1),
        Sampling(temperature=0.0, presence_penalty=0.5),
        Sampling(temperature=0.0, dry_multiplier=0.8, dry_sequence_breakers=()),
    ],
)
def test_what_needs_all_logits(model, asked, sampling):
    found = steps(model, sampling)
    assert asked == [0] * 24
    assert found == steps(model, sampling, off=SPEED_UPS)


def test_digests_are_of_all_logits(model, asked):
    def digest(row):
        assert np.isfinite(row).all()
        return hashlib.sha256(row).digest()

    found = steps(model, GREEDY, digest=digest)
    assert asked == [0] * 24
    assert found == steps(model, GREEDY, digest=digest, off=SPEED_UPS)


def test_settings_that_greedy_answers_do_not_read(asked, model):
    sampling = Sampling(temperature=0.0, typ_p=0.5, top_n_sigma=1.0, xtc_probability=0.5, top_k=3, repeat_last_n=0)
    assert steps(model, sampling) == steps(model, GREEDY, off=SPEED_UPS)
    assert asked[:24] == [0, *[2] * 23]
