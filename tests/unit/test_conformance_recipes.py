"""The built-in models: made from a counter, the same bytes everywhere, with the digests that are committed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conformance.recipes import DIGESTS, Expected, expected, recipes
from conformance.recipes.philox import random_bits
from kinetic import rng
from kinetic.api.probe import formats
from kinetic.loader import open_model_file
from kinetic.models import ARCHITECTURES, EMBEDDING_ARCHITECTURES
from tools import make_conformance_digests as tool


@pytest.mark.parametrize("seed, stream", [(0, 0), (7, 1), (2**64 - 1, 2**32 - 1), (1 << 32, 5)])
def test_numbers_are_those_of_the_engines_generator(seed, stream):
    found = random_bits(seed, stream, 40)
    assert found.tolist() == [rng.random_bits(seed, stream, position, 0) for position in range(40)]


def test_there_is_one_for_every_family_and_every_format():
    writing = [family for family in ARCHITECTURES if family not in EMBEDDING_ARCHITECTURES]
    names = {f"{family.replace('-', '_')}-mixed" for family in writing} | {
        f"llama-{kind.lower()}" for kind in formats()
    }
    names |= {"llama-experts-mixed"}
    assert recipes().keys() == names
    assert expected().keys() == names


MIXED = [name for name, recipe in recipes().items() if recipe.kind.endswith("mixed")]


@pytest.mark.parametrize("name", [*MIXED, "llama-q6_k", "llama-f16", "llama-iq1_m"])
def test_a_recipe_gives_a_model(name, tmp_path):
    recipe = recipes()[name]
    with open_model_file(recipe.write(tmp_path)) as loaded:
        assert loaded.gguf.metadata["general.architecture"].replace("-", "_") == recipe.family
        kinds = {weight.ggml_type for weight in loaded.weights.values() if len(weight.shape) > 1}
    known = {fmt.TYPE_ID: fmt.NAME for fmt in formats().values()}
    named = {known[kind] for kind in kinds}
    assert named == {recipe.kind} if not recipe.kind.endswith("mixed") else len(named) > 3


def test_recipes_differ():
    assert len({one.file for one in expected().values()}) == len(expected())
    assert len({one.logits for one in expected().values()}) == len(expected())


def test_the_models_say_something(tmp_path):
    """Otherwise equal digests would show little."""
    from conformance.setting import Setting

    setting = Setting(tmp_path, level="quick")
    for subject in setting.subjects:
        rows = np.concatenate(list(subject.probe().feed(subject.tokens, [64])))
        assert np.isfinite(rows).all()
        assert 1 < rows.std() < 10, subject.name
        assert len(np.unique(rows.argmax(axis=1))) > 25, subject.name
    setting.close()


# --- what is committed ---


def test_digests_are_current():
    """`make vectors` changes nothing."""
    committed = DIGESTS.read_text(encoding="utf-8")
    assert tool.dump(tool.compute("cpu")) == committed


BY_THE_DEFINITION = ("llama-mixed", "gemma3-mixed", "qwen3-mixed", "llama-experts-mixed", "granitemoe-mixed")
"""Each takes a while. That the reference and the CPU agree in every family is tested in tests/invariance."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_THE_DEFINITION)
def test_digests_are_those_of_the_reference(name):
    table = tool.compute("reference", [name], json.loads(DIGESTS.read_text(encoding="utf-8")), only_models=True)
    assert Expected(**table["recipes"][name]) == expected()[name]


@pytest.mark.slow
def test_digests_of_formats_are_those_of_the_reference():
    names = [name for name, recipe in recipes().items() if not recipe.kind.endswith("mixed")]
    table, committed = tool.compute("reference", names), json.loads(DIGESTS.read_text(encoding="utf-8"))
    for part in ("functions", "samplers", "quantised", "texts"):
        assert table[part] == committed[part]
    assert {name: Expected(**table["recipes"][name]) for name in names} == {name: expected()[name] for name in names}
