"""What sets families apart that small models of few layers do not show."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic import models
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from tests.support.tiny_families import write_tiny_family
from tests.support.whole_models import feed, program_of, tokens_of


def windows(path):
    with open_model_file(path) as file:
        return [spec.window for spec in models.build(file.gguf, file.weights).attention]


def refusal(path):
    with open_model_file(path) as file, pytest.raises(UnsupportedModel) as caught:
        models.build(file.gguf, file.weights)
    return caught.value.name


def logits(path, backend="cpu"):
    with open_model_file(path) as file, program_of(file, backend) as program:
        return feed(program, tokens_of(7, 9), [9])


def test_exaone_has_windows_in_its_model_of_64_layers_alone(tmp_path):
    large = write_tiny_family(tmp_path / "64", "exaone4", layers=64)
    assert windows(large) == [4096, 4096, 4096, 0] * 16
    few = write_tiny_family(tmp_path / "5", "exaone4", layers=5, keys={"attention.sliding_window": 64})
    assert windows(few) == [0] * 5


def test_exaone_with_windows_is_that_of_the_reference(tmp_path):
    """Its layers without a window rotate nothing."""
    path = write_tiny_family(tmp_path / "m", "exaone4", layers=64, keys={"attention.sliding_window": 4})
    found = logits(path)
    assert np.isfinite(found).all() and np.array_equal(found, logits(path, "reference"))


def test_windows_of_olmo(tmp_path):
    assert windows(write_tiny_family(tmp_path / "a", "olmo2")) == [64, 64, 64, 0, 64]
    keys = {"attention.sliding_window_pattern": [True, False, True, False, False]}
    assert windows(write_tiny_family(tmp_path / "b", "olmo2", keys=keys)) == [64, 0, 64, 0, 0]
    assert windows(write_tiny_family(tmp_path / "c", "olmo2", keys={"attention.sliding_window": 0})) == [0] * 5
    keys = {"attention.sliding_window_pattern": [True, False]}
    assert refusal(write_tiny_family(tmp_path / "d", "olmo2", keys=keys)) == "BAD_SETTING"


def test_only_layers_without_a_window_are_stretched_in_olmo(tmp_path):
    everywhere = {"attention.sliding_window_pattern": [True] * 5}
    plain = everywhere | {"rope.scaling.type": "none"}
    found = logits(write_tiny_family(tmp_path / "a", "olmo2", keys=everywhere))
    assert np.array_equal(found, logits(write_tiny_family(tmp_path / "b", "olmo2", keys=plain)))
    one = logits(write_tiny_family(tmp_path / "c", "olmo2", keys={"rope.scaling.type": "none"}))
    assert not np.array_equal(one, logits(write_tiny_family(tmp_path / "d", "olmo2")))


@pytest.mark.parametrize("architecture", ["granite", "smollm3"])
def test_the_scale_of_attention_is_the_files(tmp_path, architecture):
    path = write_tiny_family(tmp_path / "m", architecture, keys={"attention.scale": 0.25})
    with open_model_file(path) as file:
        assert {spec.scale for spec in models.build(file.gguf, file.weights).attention} == {0.25}


def test_scales_of_granite(tmp_path):
    base = logits(write_tiny_family(tmp_path / "a", "granite"))
    doubled = logits(write_tiny_family(tmp_path / "b", "granite", keys={"logit_scale": 0.75}))
    assert np.allclose(doubled, 2 * base, rtol=1e-6)
    for number, key in enumerate(("embedding_scale", "residual_scale")):
        assert not np.array_equal(base, logits(write_tiny_family(tmp_path / f"{number}", "granite", keys={key: 0.7})))
    unturned = write_tiny_family(tmp_path / "c", "granite", keys={"rope.scaling.finetuned": False})
    assert not np.array_equal(base, logits(unturned))


@pytest.mark.parametrize(
    "architecture, keys, name",
    [
        ("granite", {"logit_scale": 0.0}, "BAD_SETTING"),
        ("granite", {"residual_scale": float("nan")}, "BAD_SETTING"),
        ("granite", {"attention.scale": float("inf")}, "BAD_SETTING"),
        ("granite", {"expert_count": 4}, "UNSUPPORTED_LAYERS"),
        ("hunyuan-dense", {"rope.scaling.alpha": 1000.0}, "UNSUPPORTED_ROPE"),
        ("exaone4", {"nextn_predict_layers": 1}, "UNSUPPORTED_LAYERS"),
    ],
)
def test_refused(tmp_path, architecture, keys, name):
    assert refusal(write_tiny_family(tmp_path / "m", architecture, keys=keys)) == name
