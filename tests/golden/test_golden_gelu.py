"""Families with GELU against llama.cpp, which reads it from a table: of float16 numbers, in float16.

With its table in the place of our function, and keys and values in float32 as it keeps them here, what is left is the
order of sums, and what that becomes where a number falls on the other side of a step of the table. llama.cpp moves as
much between its own ways of running (``token_by_token``: 0.008 for gemma4-e2b).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.control_word import default_rounding
from kinetic.backends.reference import functions
from kinetic.backends.reference import ops as reference_ops
from kinetic.backends.states import StateStore
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.golden.test_golden_archs import FloatCache, check_greedy

ROWS = {"gemma3": 48}
"""Rows of the prompt, where they are not all and the greedy answer: each costs the reference a while."""

LARGEST = {"gemma3": 0.004, "gemma4-dense": 0.01, "gemma4-e2b": 0.02, "gemma4-moe": 0.005}
"""Largest difference of a logit; about twice what was measured."""


def from_the_table(x):
    """GELU as llama.cpp has it: nothing below -10, the number itself above 10."""
    halves = functions.gelu(x.astype(np.float16).astype(np.float32)).astype(np.float16).astype(np.float32)
    return np.where(x <= -10, np.float32(0), np.where(x >= 10, x, halves))


@pytest.mark.parametrize("name", LARGEST)
def test_formula(golden, name, monkeypatch):
    monkeypatch.setattr(reference_ops, "Cache", FloatCache)
    monkeypatch.setitem(functions.GATES, "gelu", lambda gate, up: from_the_table(gate) * up)
    folder = golden / "archs" / name
    prompt = json.loads((folder / "tokens.json").read_text())["tokens"]
    greedy = json.loads((folder / "greedy.json").read_text())
    tokens = tuple([*prompt, *greedy["greedy"]["ids"][:-1]][: ROWS.get(name)])
    rows = tuple(range(len(tokens)))
    with open_model_file(folder / "model.gguf") as file, default_rounding():
        family = models.build(file.gguf, file.weights)
        ops = reference_ops.ReferenceOps(
            Batch(tokens, rows, (0,) * len(rows), rows), reference_ops.Caches([]), StateStore(family.states)
        )
        found = family.forward(ops)
    length = min(len(prompt), len(tokens))
    difference = float(np.abs(found[:length] - np.load(folder / "logits.npy")[:length]).max())
    print(f"{name}: {difference:.1e}")
    assert difference <= LARGEST[name]
    if name not in ROWS:
        assert check_greedy(found[length - 1 :], greedy, difference) >= 22
