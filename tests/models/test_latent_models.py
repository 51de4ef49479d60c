"""Settings of gpt-oss and deepseek2: what files may say, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.base import Attention
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from tests.support.tiny_latent import PLAIN, RANK, ROTATED, VALUE, write_tiny_deepseek2, write_tiny_gpt_oss
from tests.support.whole_models import feed, program_of, tokens_of


def layers_of(path):
    with open_model_file(path) as file:
        return models.build(file.gguf, file.weights).attention


def refusal(path):
    with open_model_file(path) as file, pytest.raises(UnsupportedModel) as caught:
        models.build(file.gguf, file.weights)
    return caught.value.name


def logits(path):
    with open_model_file(path) as file, program_of(file) as program:
        return feed(program, tokens_of(7, 90), [90])


def test_windows_of_gpt_oss(tmp_path):
    assert [spec.window for spec in layers_of(write_tiny_gpt_oss(tmp_path / "a"))] == [64, 0, 64]
    keys = {"attention.sliding_window_pattern": [False, True, False]}
    assert [spec.window for spec in layers_of(write_tiny_gpt_oss(tmp_path / "b", keys=keys))] == [0, 64, 0]


def test_the_base_of_layers_with_a_window(tmp_path):
    base = {"rope.freq_base": 50_000.0}
    plain = logits(write_tiny_gpt_oss(tmp_path / "a", keys=base))
    same = logits(write_tiny_gpt_oss(tmp_path / "b", keys=base | {"rope.freq_base_swa": 50_000.0}))
    other = logits(write_tiny_gpt_oss(tmp_path / "c", keys=base | {"rope.freq_base_swa": 10_000.0}))
    assert np.array_equal(plain, same) and not np.array_equal(plain, other)


@pytest.mark.parametrize(
    "keys, name",
    [
        ({"attention.sliding_window": 0}, "BAD_SETTING"),
        ({"rope.dimension_count": 16}, "BAD_ROPE_WIDTH"),
        ({"rope.freq_base_swa": 0.5}, "BAD_SETTING"),
        ({"attention.value_length": 16}, "UNSUPPORTED_HEADS"),
        ({"expert_feed_forward_length": 32}, "WRONG_SHAPE"),
    ],
)
def test_what_gpt_oss_refuses(tmp_path, keys, name):
    assert refusal(write_tiny_gpt_oss(tmp_path / "m", keys=keys)) == name


def test_what_is_kept_of_latent_attention(tmp_path):
    """The latent and the rotated elements where matrices are absorbed, keys and values of all heads otherwise."""
    key = PLAIN + ROTATED
    absorbed = layers_of(write_tiny_deepseek2(tmp_path / "a"))[1]
    apart = layers_of(write_tiny_deepseek2(tmp_path / "b", absorbed=False))[1]
    assert absorbed == Attention(1, 4, 1, RANK + ROTATED, absorbed.scale, 0, RANK)
    assert apart == Attention(1, 4, 4, key, float(np.float32(1 / math.sqrt(key))), 0, VALUE)


@pytest.mark.parametrize("multiplier, attention_factor", [(0.1, 1.0), (0.0707, 1.25), (0.0, 1.0), (0.0, 0.75)])
def test_scales_under_yarn(tmp_path, multiplier, attention_factor):
    keys = {"rope.scaling.yarn_log_multiplier": multiplier, "rope.scaling.attn_factor": attention_factor}
    found = layers_of(write_tiny_deepseek2(tmp_path / "m", keys=keys))[0].scale
    magnitude = attention_factor * (1 + (multiplier or 0.1) * math.log(4))
    assert found == pytest.approx(magnitude**2 / math.sqrt(PLAIN + ROTATED), rel=1e-6)


@pytest.mark.parametrize(
    "keys",
    [
        {"expert_weights_norm": False},
        {"expert_weights_scale": 1.0},
        {"expert_gating_func": 1},
        {"expert_group_count": 1, "expert_group_used_count": 1},
        {"expert_group_used_count": 1},
        {"rope.scaling.yarn_log_multiplier": 0.0},
        {"rope.scaling.type": "none"},
    ],
    ids=str,
)
def test_settings_that_change_what_is_computed(tmp_path, keys):
    """Each by itself; a model of groups that are all used is one without groups."""
    base = logits(write_tiny_deepseek2(tmp_path / "a"))
    assert not np.array_equal(base, logits(write_tiny_deepseek2(tmp_path / "b", keys=keys)))


def test_groups_that_are_all_used(tmp_path):
    found = logits(write_tiny_deepseek2(tmp_path / "a", keys={"expert_group_used_count": 3}))
    keys = {"expert_group_count": 1, "expert_group_used_count": 1}
    assert np.array_equal(found, logits(write_tiny_deepseek2(tmp_path / "b", keys=keys)))


@pytest.mark.parametrize(
    "keys, name",
    [
        ({"expert_gating_func": 4}, "UNSUPPORTED_LAYERS"),
        ({"nextn_predict_layers": 1}, "UNSUPPORTED_LAYERS"),
        ({"attention.temperature_scale": 0.1}, "UNSUPPORTED_ATTENTION"),
        ({"expert_group_count": 4}, "BAD_SETTING"),
        ({"expert_group_count": 6, "expert_group_used_count": 2}, "BAD_SETTING"),
        ({"expert_group_used_count": 4}, "BAD_SETTING"),
        ({"expert_weights_scale": float("inf")}, "BAD_SETTING"),
        ({"leading_dense_block_count": 3}, "BAD_SETTING"),
        ({"rope.scaling.type": "linear"}, "UNSUPPORTED_ROPE"),
        ({"rope.scaling.yarn_log_multiplier": float("nan")}, "BAD_SETTING"),
        ({"attention.key_length_mla": ROTATED}, "BAD_ROPE_WIDTH"),
        ({"attention.kv_lora_rank": 32}, "WRONG_SHAPE"),
        ({"leading_dense_block_count": 0}, "MISSING_TENSOR"),
    ],
    ids=str,
)
def test_what_deepseek2_refuses(tmp_path, keys, name):
    assert refusal(write_tiny_deepseek2(tmp_path / "m", keys=keys)) == name
