"""What the conformance suite sees of the engine: rows, draws and answers, opened in any way."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kinetic.api import probe
from kinetic.backends.cpu import target
from kinetic.errors import KineticError, UsageError
from kinetic.types import Batch, Request, Sampling
from tests.support.tiny_models import write_tiny_qwen3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_qwen3(tmp_path_factory.mktemp("probe") / "tiny.gguf")


TOKENS = list(range(5, 25))


def test_rows_are_fed_in_passes(path):
    with probe.Probe(path) as opened:
        passes = list(opened.feed(TOKENS, [3, 1, 7]))
        assert [len(rows) for rows in passes] == [3, 1, 7, 7, 2]
        opened.forget()
        batch = Batch(tuple(TOKENS), tuple(range(20)), (0,) * 20, (0, 19))
        assert np.array_equal(opened.run(batch), np.concatenate(passes)[[0, 19]])


def test_answers_and_replays(path):
    asked = Request(tuple(TOKENS), Sampling(temperature=0.9, seed=3), 6)
    with probe.Probe(path) as opened:
        steps = opened.answer(asked, rows_at_once=1)
        assert len(steps) == 6 and all(len(step.commit) == 8 for step in steps)
        assert opened.answer(asked) == steps
        assert opened.replay(asked, [step.token for step in steps]) == steps
        opened.forget()
        *_, last = opened.feed(TOKENS, [20])
        assert opened.draw(last[-1], TOKENS, asked.sampling) == steps[0].token


@pytest.mark.parametrize("before", [None, target.available()[0]])
def test_the_environment_is_left_as_it_was(path, monkeypatch, before):
    monkeypatch.delenv(target.ENVIRONMENT, raising=False)
    if before:
        monkeypatch.setenv(target.ENVIRONMENT, before)
    with probe.Probe(path, isa="plain") as opened:
        assert os.environ.get(target.ENVIRONMENT) == before
        assert opened._engine._program._kernels.isa == "plain"
    with pytest.raises(UsageError):
        probe.Probe(path, isa="abacus")
    assert os.environ.get(target.ENVIRONMENT) == before


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(KineticError):
        probe.Probe(tmp_path / "none.gguf")


def test_instruction_sets_are_all_named():
    here, lacking = probe.instruction_sets()
    assert here == target.available() and not set(here) & set(lacking)
