"""Files of models with layers of Mamba-2: what their settings mean, and what is refused."""

from __future__ import annotations

import pytest

from kinetic import models
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from tests.support.tiny_hybrids import HYBRIDS, write_tiny_hybrid


def built(path):
    with open_model_file(path) as file:
        return models.build(file.gguf, file.weights)


def refusal(tmp_path, name, **changes):
    with pytest.raises(UnsupportedModel) as caught:
        built(write_tiny_hybrid(tmp_path / "m.gguf", name, **changes))
    return caught.value.name, str(caught.value)


def test_what_each_layer_is(tmp_path):
    family = built(write_tiny_hybrid(tmp_path / "m.gguf", "nemotron_h"))  # mfamf
    assert [(spec.layer, spec.kv_heads) for spec in family.attention] == [(2, 2)]
    assert [(s.layer, s.name, s.shape) for s in family.states] == [
        (0, "conv", (3, 8 * 16 + 2 * 2 * 16)),
        (0, "scan", (8, 1, 16, 16)),
        (3, "conv", (3, 8 * 16 + 2 * 2 * 16)),
        (3, "scan", (8, 1, 16, 16)),
    ]


def test_attention_and_mamba_beside_one_another(tmp_path):
    family = built(write_tiny_hybrid(tmp_path / "m.gguf", "falcon-h1"))
    assert [spec.layer for spec in family.attention] == [0, 1]
    assert [(state.layer, state.name) for state in family.states] == [(i, n) for i in (0, 1) for n in ("conv", "scan")]
    assert family.states[1].shape == (4, 2, 12, 16)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize(
    "keys, found",
    [
        ({"ssm.inner_size": 97}, "BAD_HEAD_COUNT"),
        ({"ssm.group_count": 5}, "BAD_HEAD_COUNT"),
        ({"ssm.group_count": 0}, "BAD_SETTING"),
        ({"ssm.state_size": 18}, "UNSUPPORTED_STATE"),
        ({"ssm.state_size": 2048}, "UNSUPPORTED_STATE"),
        ({"ssm.conv_kernel": 1}, "BAD_SETTING"),
        ({"ssm.conv_kernel": 17}, "BAD_SETTING"),
        ({"ssm.state_size": 24}, "WRONG_SHAPE"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, name, keys, found):
    error, message = refusal(tmp_path, name, keys=keys)
    assert error == found
    assert "ssm" in message


@pytest.mark.parametrize(
    "name, keys, found",
    [
        ("nemotron_h", {"feed_forward_length": [0, 96, 96, 0, 96]}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h", {"feed_forward_length": [0, 96, 0, 0, 64]}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h", {"feed_forward_length": [0, 96]}, "BAD_SETTING"),
        ("nemotron_h", {"nextn_predict_layers": 1}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h", {"expert_count": 4}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h_moe", {"moe_latent_size": 32}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h_moe", {"expert_group_count": 2}, "UNSUPPORTED_LAYERS"),
        ("nemotron_h_moe", {"expert_weights_scale": -1.0}, "BAD_SETTING"),
        ("nemotron_h_moe", {"expert_shared_feed_forward_length": 0}, "BAD_SETTING"),
        ("granitehybrid", {"attention.head_count_kv": [0, 3, 0]}, "BAD_HEAD_COUNT"),
        ("granitehybrid", {"attention.head_count_kv": [2, 2, 2]}, "MISSING_TENSOR"),
        ("granitehybrid", {"logit_scale": float("nan")}, "BAD_SETTING"),
        ("granitehybrid-moe", {"expert_used_count": 7}, "BAD_SETTING"),
    ],
)
def test_layers_that_cannot_run(tmp_path, name, keys, found):
    assert refusal(tmp_path, name, keys=keys)[0] == found


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("tensor", ["ssm_a", "ssm_dt.bias", "ssm_conv1d.weight", "ssm_in.weight"])
def test_a_tensor_that_is_missing(tmp_path, name, tensor):
    layer = next(i for i, letter in enumerate(HYBRIDS[name].layers) if letter in "mb")
    error, message = refusal(tmp_path, name, drop=f"blk.{layer}.{tensor}")
    assert error == "MISSING_TENSOR"
    assert f"blk.{layer}.{tensor}" in message
