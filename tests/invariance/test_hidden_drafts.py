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


@pytest.fixture
def warm(file):
    made = Engine(file.gguf, file.weights, threads=2)
    yield made
    made.close()


def steps_of(engine, prompt, count):
    """A source of hidden rows alone guesses."""
    return list(engine.generate(Request(tuple(prompt), Sampling(temperature=0), count)))


def test_behind_a_prompt_that_goes_on_it_knows_what_one_knows_that_saw_all(warm, engine):
    source = fresh(warm)
    warm.drafter = Drafter([source])
    answer = [step.token for step in steps_of(warm, PROMPT[:150], 9)]
    longer = [*PROMPT[:150], *answer, *PROMPT[150:200]]
    found = steps_of(warm, longer, 5)
    assert warm.reused >= 150 and source._base == 0
    cold = fresh(engine)
    engine.drafter = Drafter([cold])
    assert steps_of(engine, longer, 5) == found
    history = [*longer, *(step.token for step in found)]
    assert guessed(source, history) == guessed(cold, history)


def test_behind_a_prompt_that_was_set_aside_it_goes_on(warm):
    """Of the one row that it could not see before its own layer saw it, it is given zeros."""
    source = fresh(warm)
    warm.drafter = Drafter([source])
    expected = steps_of(warm, PROMPT, 5)
    assert source._program.length(0) > 0 and warm._seeing.memory > 0
    steps_of(warm, PROMPT[50:200], 5)
    assert len(source._warm.memory) > 0
    assert steps_of(warm, PROMPT, 5) == expected
    assert warm.reused > 0
    assert (source._base, source._tokens[: len(PROMPT)]) == (0, PROMPT), "it goes on behind what the model has"
    assert len(guessed(source, [*PROMPT, *(step.token for step in expected)])[0]) > 5


def test_what_is_typed_is_seen(warm):
    source = fresh(warm)
    warm.drafter = Drafter([source])
    warm.prefill(PROMPT[:120])
    assert source.wanted == 120
    warm.prefill([*PROMPT[:100], *PROMPT[200:240]])
    assert source._tokens[:100] == PROMPT[:100] and source._tokens[100:] == PROMPT[200:240][: len(source._tokens) - 100]
    steps_of(warm, [*PROMPT[:100], *PROMPT[200:230]], 3)
    assert source._tokens[:130] == [*PROMPT[:100], *PROMPT[200:230]]


def test_a_pass_of_its_own_that_was_broken_off(warm):
    """Its rows are gone, so it begins anew."""
    source = fresh(warm)
    warm.drafter = Drafter([source])
    expected = steps_of(warm, PROMPT, 3)
    source._program.truncate(0, 0)
    assert steps_of(warm, PROMPT, 3) == expected


def test_the_output_layer_is_packed_once(warm):
    """And so is whatever else the model's own layer shares with it."""
    ours, theirs = warm._program.weights, warm._seeing._program.weights
    shared = [name for name in theirs._lent if name.startswith(("output.", "token_embd."))]
    assert len(shared) == 1
    weight = ours._weights[shared[0]]
    assert theirs.packed(weight).data.ctypes.data == ours.packed(weight).data.ctypes.data
    assert not set(theirs._weights) & set(ours._weights)
