"""Mixtures of experts against llama.cpp, with keys and values in float32 as it keeps them for these numbers.

So what is left is the order of sums, and 2e-4 is room for no other mistake.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.reference import ops
from kinetic.loader import open_model_file
from tests.support.backends import assert_same, loaded
from tests.support.whole_models import feed

LARGEST = 2e-4


class Float32Cache(ops.Cache):
    """Rounds nothing."""

    def __init__(self, spec):
        super().__init__(spec)
        self.keys, self.values = self.keys.astype(np.float32), self.values.astype(np.float32)

    def store(self, position, key, value):
        if position >= len(self.keys):
            self.keys, self.values = (
                np.concatenate([a, np.full((position + 1, *a.shape[1:]), np.nan, np.float32)])
                for a in (self.keys, self.values)
            )
        self.keys[position], self.values[position] = key, value


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "granitemoe", "lfm2moe"])
def test_logits(golden, name, monkeypatch):
    monkeypatch.setattr(ops, "Cache", Float32Cache)
    folder = golden / "archs" / name
    tokens = json.loads((folder / "tokens.json").read_text())["tokens"]
    greedy = json.loads((folder / "greedy.json").read_text())["greedy"]
    with open_model_file(folder / "model.gguf") as file:
        family = models.build(file.gguf, file.weights)
        with loaded(family.forward, family.attention, "reference", states=family.states) as program:
            rows = feed(program, [*tokens, *greedy["ids"][:-1]], [1000])
    difference = float(np.abs(rows[: len(tokens)] - np.load(folder / "logits.npy")).max())
    print(f"{name}: {difference:.2e}")
    assert difference < LARGEST
    decided = [margin > 2 * LARGEST for margin in greedy["margins"]]
    wanted = zip(rows[len(tokens) - 1 :], greedy["ids"], decided, strict=True)
    assert all(int(row.argmax()) == token for row, token, is_decided in wanted if is_decided)
    assert sum(decided) >= 18


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "granitemoe", "lfm2moe"])
def test_the_cpu_gives_the_same(golden, name):
    """Keys and values in float16 on both."""
    folder = golden / "archs" / name
    tokens = json.loads((folder / "tokens.json").read_text())["tokens"]
    with open_model_file(folder / "model.gguf") as file:
        family = models.build(file.gguf, file.weights)
        rows = []
        for backend in ("reference", "cpu"):
            with loaded(family.forward, family.attention, backend, states=family.states) as program:
                rows.append(feed(program, tokens[:28], [9, 1, 1, 17]))
    assert_same(rows[1], rows[0])
