"""Models with a layer that predicts one token more, against llama.cpp: the model without it, its rows, its drafts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.reference import ops
from kinetic.errors import KineticError
from kinetic.layers.deltanet import HIDDEN
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.golden.test_golden_archs import FloatCache
from tests.support.backends import assert_same, loaded

FLOAT16 = 0.004
"""Of logits, hidden rows too, with keys and values in float16; about twice what was measured."""

LARGEST = 2e-4
"""The same with keys and values in float32, as llama.cpp keeps them for these numbers."""


MODELS = ("qwen35-mtp", "qwen35moe-mtp")


@pytest.fixture(params=MODELS)
def case(request, golden):
    folder = golden / "archs" / request.param
    tokens = tuple(json.loads((folder / "tokens.json").read_text())["tokens"])
    with open_model_file(folder / "model.gguf") as file:
        yield folder, models.build(file.gguf, file.weights), tokens


def batch(tokens, start=0):
    rows = tuple(range(len(tokens)))
    return Batch(tuple(tokens), tuple(start + row for row in rows), (0,) * len(rows), rows)


def behind(hidden):
    """What row i is given: the hidden row of the token before."""
    return np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])


def difference(found, folder, name):
    return float(np.abs(found - np.load(folder / name)).max())


def test_answers_are_those_without_it(case):
    """And tapping the hidden rows changes no bit of them."""
    folder, family, tokens = case
    found = []
    for forward in (family.forward, family.next_token.trunk):
        with loaded(forward, family.attention, states=family.states) as program:
            found.append(program.run(batch(tokens)))
            taps = program.taps()
    assert_same(found[1], found[0])
    assert difference(found[0], folder, "logits.npy") < FLOAT16
    assert difference(taps[HIDDEN], folder, "mtp_h_target.npy") < FLOAT16


def test_formula(case, monkeypatch):
    monkeypatch.setattr(ops, "Cache", FloatCache)
    folder, family, tokens = case
    more = family.next_token
    with loaded(more.forward, more.attention, "reference") as program:
        logits = program.run(batch(tokens), behind(np.load(folder / "mtp_h_target.npy")))
        assert difference(logits, folder, "mtp_logits.npy") < LARGEST
        assert difference(program.taps()[HIDDEN], folder, "mtp_h_draft.npy") < LARGEST


def test_drafts(case):
    """The prompt in two pieces, then six tokens, each drafted from the hidden row that the one before left."""
    folder, family, tokens = case
    more, hidden = family.next_token, np.load(folder / "mtp_h_target.npy")
    spec = json.loads((folder / "mtp_spec.json").read_text())
    given = behind(hidden)
    with loaded(more.forward, more.attention) as program:
        whole = program.run(batch(tokens), given)
        program.truncate(0, 0)
        pieces = [program.run(batch(tokens[:57]), given[:57]), program.run(batch(tokens[57:], 57), given[57:])]
        assert_same(np.concatenate(pieces), whole)
        token, row, drafts = spec["id_last"], hidden[-1:], []
        for step in range(len(spec["draft_ids"])):
            token = int(program.run(batch([token], len(tokens) + step), row)[0].argmax())
            row = program.taps()[HIDDEN]
            drafts.append(token)
    assert drafts == spec["draft_ids"]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_that_do_not_fit_are_refused(case, backend):
    _, family, tokens = case
    more = family.next_token
    with loaded(more.forward, more.attention, backend) as program:
        for given in (None, np.zeros((2, more.width), np.float32), np.zeros((1, more.width + 1), np.float32)):
            with pytest.raises(KineticError, match="beside each") as caught:
                program.run(batch(tokens[:1]), given)
            assert caught.value.name == "WRONG_ROWS_GIVEN"
    plain = loaded(family.forward, family.attention, backend, states=family.states)
    with plain as program, pytest.raises(KineticError, match="beside each"):
        program.run(batch(tokens[:1]), np.zeros((1, more.width), np.float32))
