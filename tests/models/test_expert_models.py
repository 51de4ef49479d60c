"""Files of models with experts: read as experts times rows, and refused where a number makes no sense."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic import models
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from tests.support.tiny_models import MIXTURES, write_tiny_mixture


def refusal(path):
    with open_model_file(path) as file, pytest.raises(UnsupportedModel) as caught:
        models.build(file.gguf, file.weights)
    return caught.value.name, str(caught.value)


def test_three_dimensions_are_rows_of_experts(tmp_path):
    with open_model_file(write_tiny_mixture(tmp_path / "m.gguf", "mixtral")) as file:
        weight = file.weights["blk.1.ffn_down_exps.weight"]
        assert weight.shape == (6, 64, 96)
        assert weight.data.shape == (6 * 64, 96 // 32 * 20)
        raw = np.asarray(file.gguf.data(weight.name)).reshape(-1)
        assert np.array_equal(weight.data.reshape(-1), raw)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("experts, used", [(6, 0), (6, 7), (1025, 2)])
def test_numbers_that_make_no_sense(tmp_path, name, experts, used):
    found, message = refusal(write_tiny_mixture(tmp_path / "m.gguf", name, experts=experts, used=used))
    assert found == "BAD_SETTING"
    assert "it must lie between 1 and" in message


@pytest.mark.parametrize("key", ["logit_scale", "residual_scale", "embedding_scale", "attention.scale"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_scales_that_make_no_sense(tmp_path, key, value, monkeypatch):
    architecture, types, settings = MIXTURES["granitemoe"]
    monkeypatch.setitem(MIXTURES, "granitemoe", (architecture, types, settings | {key: value}))
    found, message = refusal(write_tiny_mixture(tmp_path / "m.gguf", "granitemoe"))
    assert found == "BAD_SETTING"
    assert key in message


def test_a_shared_block_that_this_family_does_not_use(tmp_path, monkeypatch):
    architecture, types, settings = MIXTURES["mixtral"]
    changed = settings | {"expert_shared_feed_forward_length": 32}
    monkeypatch.setitem(MIXTURES, "mixtral", (architecture, types, changed))
    assert refusal(write_tiny_mixture(tmp_path / "m.gguf", "mixtral"))[0] == "EXTRA_TENSOR"
