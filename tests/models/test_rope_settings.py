"""How positions may be stretched, as a file's settings say it."""

from __future__ import annotations

import pytest

from kinetic import models
from kinetic.backends.rope_tables import Yarn, frequencies, yarn_magnitude
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from tests.support.tiny_models import write_tiny_llama

YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 128}


def rope(path, **scaling):
    keys = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    with open_model_file(write_tiny_llama(path / "m.gguf", keys=keys)) as file:
        models.build(file.gguf, file.weights)
        return read_rope(file.gguf, "llama", read_dense(file.gguf, "llama"), interleaved=True)


def test_not_stretched(tmp_path):
    for scaling in ({}, {"type": "none", "factor": 4.0}, {"factor": 1.0}):
        found = rope(tmp_path, **scaling)
        assert found.frequencies == frequencies(10000.0, 64) and found.magnitude == 1.0 and found.interleaved


def test_linear(tmp_path):
    assert rope(tmp_path, factor=4.0).frequencies == frequencies(10000.0, 64, factor=4.0)


def test_yarn(tmp_path):
    found = rope(tmp_path, **YARN)
    assert found.frequencies == frequencies(10000.0, 64, factor=4.0, yarn=Yarn(128))
    assert found.magnitude == yarn_magnitude(4.0) > 1.1


def test_yarn_without_its_context_takes_the_models(tmp_path):
    found = rope(tmp_path, type="yarn", factor=4.0)
    assert found.frequencies == frequencies(10000.0, 64, factor=4.0, yarn=Yarn(2048))


def test_the_attention_factor_multiplies(tmp_path):
    assert rope(tmp_path, attn_factor=1.5).magnitude == 1.5
    assert rope(tmp_path, **YARN, attn_factor=1.5).magnitude == yarn_magnitude(4.0, 1.5)


@pytest.mark.parametrize(
    "scaling, name",
    [
        ({"type": "longrope"}, "UNSUPPORTED_ROPE"),
        ({"type": "dynamic"}, "UNSUPPORTED_ROPE"),
        (YARN | {"factor": -2.0}, "BAD_SETTING"),
        (YARN | {"original_context_length": 0}, "BAD_SETTING"),
        (YARN | {"yarn_beta_fast": 16.0}, "UNSUPPORTED_ROPE"),
        (YARN | {"yarn_beta_slow": 2.0}, "UNSUPPORTED_ROPE"),
        ({"attn_factor": 0.0}, "BAD_SETTING"),
        ({"attn_factor": float("nan")}, "BAD_SETTING"),
    ],
)
def test_refused(tmp_path, scaling, name):
    with pytest.raises(UnsupportedModel) as caught:
        rope(tmp_path, **scaling)
    assert caught.value.name == name


def test_the_usual_bounds_may_be_named(tmp_path):
    assert rope(tmp_path, **YARN, yarn_beta_fast=32.0, yarn_beta_slow=1.0) == rope(tmp_path, **YARN)
