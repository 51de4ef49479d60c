"""A model's own layer for one token more guesses, and no bit of an answer changes."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.engine import Engine
from kinetic.engine.drafts import Drafter
from kinetic.loader import open_model_file
from kinetic.types import Request, Sampling
from tests.support.hidden_drafts import check_hidden_drafts, fresh, guessed
from tests.support.whole_models import tokens_of

PROMPT = tokens_of(100)[:247]

COLD = ("warm",)
"""A drafter sees nothing of what is not computed again."""


@pytest.fixture(scope="module")
def file(tiny_folder):
    with open_model_file(tiny_folder / "qwen35.gguf") as opened:
        yield opened


@pytest.fixture
def engine(file):
    made = Engine(file.gguf, file.weights, threads=2, off=COLD)
    yield made
    made.close()


def test_steps_are_those_of_plain_decoding(file, engine):
    plain = Engine(file.gguf, file.weights, threads=1, off=("drafts",))
    assert plain._seeing is None and engine._seeing is not None
    assert len(engine.drafter.sources) == 2, "it is on unless it is turned off"
    check_hidden_drafts(engine, plain, PROMPT)
    plain.close()


def test_rows_that_were_not_seen(engine):
    """After a gap it begins anew there, and goes on guessing."""
    source = fresh(engine)
    engine.drafter = Drafter([source])
    for _ in engine.generate(Request(tuple(PROMPT), Sampling(temperature=0), 1)):
        pass
    hidden = engine._seeing.rows()
    source.see(300, PROMPT[:60], hidden[:60])
    assert (source._base, len(source._tokens)) == (300, 60)
    source.see(350, PROMPT[50:70], hidden[50:70])
    assert (source._base, source._tokens) == (300, PROMPT[:70])
    anew = guessed(source, [0] * 370 + [5])
    assert list(source.propose([0] * 371 + [5], 8)) == [], "of rows that it has not seen it says nothing"
    source.begin([])
    source.see(0, PROMPT[:70], hidden[:70])
    assert guessed(source, [*PROMPT[:70], 5]) == anew


def test_what_overflows_guesses_nothing(engine):
    source = fresh(engine)
    source.begin([])
    source.see(0, PROMPT[:5], np.full((5, engine._seeing._drafter.width), np.inf, np.float32))
    assert list(source.propose(PROMPT[:6], 8)) == []
