"""What sets families apart that small models of few layers do not show."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.base import Weight
from kinetic.engine import Engine
from kinetic.errors import UnsupportedModel
from kinetic.layers.fused import split
from kinetic.layers.watched import Inputs
from kinetic.loader import open_model_file
from tests.support.backends import loaded
from tests.support.tiny_families import write_tiny_family
from tests.support.tiny_recurrent import write_tiny_recurrent
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
        ("phi3", {"expert_count": 16}, "UNSUPPORTED_LAYERS"),
        ("qwen2", {"rope.scaling.type": "longrope"}, "UNSUPPORTED_ROPE"),
        ("exaone4", {"nextn_predict_layers": 1}, "UNSUPPORTED_LAYERS"),
    ],
)
def test_refused(tmp_path, architecture, keys, name):
    assert refusal(write_tiny_family(tmp_path / "m", architecture, keys=keys)) == name


# --- convolutions ---


def test_layers_of_lfm2(tmp_path):
    """Those with heads for keys attend; of the others each keeps the last rows that its convolution saw."""
    path = write_tiny_recurrent(tmp_path / "m", "lfm2")
    with open_model_file(path) as file:
        family = models.build(file.gguf, file.weights)
    assert [spec.layer for spec in family.attention] == [2, 4]
    assert [(state.layer, state.shape) for state in family.states] == [(i, (3, 64)) for i in (0, 1, 3, 5)]


@pytest.mark.parametrize(
    "keys, name",
    [
        ({"shortconv.l_cache": 1}, "BAD_SETTING"),
        ({"shortconv.l_cache": 65}, "BAD_SETTING"),
        ({"shortconv.l_cache": 3}, "WRONG_SHAPE"),
        ({"attention.sliding_window": 64}, "UNSUPPORTED_ATTENTION"),
        ({"attention.causal": False}, "UNSUPPORTED_ATTENTION"),
        ({"attention.head_count_kv": [0, 0, 2, 0, 1, 0]}, "UNSUPPORTED_LAYERS"),
        ({"attention.head_count_kv": [0] * 6}, "BAD_SETTING"),
        ({"attention.head_count_kv": [0, 2, 2, 0, 0, 0]}, "MISSING_TENSOR"),
        ({"attention.head_count_kv": [0, 2]}, "BAD_SETTING"),
    ],
)
def test_refused_convolutions(tmp_path, keys, name):
    assert refusal(write_tiny_recurrent(tmp_path / "m", "lfm2", more=keys)) == name


@pytest.mark.parametrize(
    "keys, name",
    [
        ({"expert_gating_func": 3}, "UNSUPPORTED_LAYERS"),
        ({"expert_weights_scale": 2.5}, "UNSUPPORTED_LAYERS"),
        ({"leading_dense_block_count": 7}, "BAD_SETTING"),
        ({"leading_dense_block_count": 2}, "MISSING_TENSOR"),
        ({"expert_feed_forward_length": 0}, "BAD_SETTING"),
    ],
)
def test_refused_convolutions_with_experts(tmp_path, keys, name):
    assert refusal(write_tiny_recurrent(tmp_path / "m", "lfm2moe", more=keys)) == name


# --- one tensor for several matrices, and the factors of longrope ---


def phi3(path, change=lambda weights: weights, **keys):
    """Logits of the small model, its weights changed."""
    if not path.is_file():
        write_tiny_family(path, "phi3", keys={f"rope.scaling.{key}": value for key, value in keys.items()})
    with open_model_file(path) as file:
        family = models.build(file.gguf, change(dict(file.weights)))
        with loaded(family.forward, family.attention, "cpu", 2) as program:
            return feed(program, tokens_of(7, 9), [9])


def apart(weights):
    """The same model with queries, keys and values in tensors of their own, as some files have them."""
    for layer in range(2):
        fused = weights.pop(f"blk.{layer}.attn_qkv.weight")
        for name, first, rows in (("attn_q", 0, 96), ("attn_k", 96, 24), ("attn_v", 120, 24)):
            data = fused.data[first : first + rows].copy()
            name = f"blk.{layer}.{name}.weight"
            weights[name] = Weight(name, fused.ggml_type, (rows, fused.shape[1]), data)
    return weights


def test_parts_of_a_tensor_are_matrices(tmp_path):
    path = tmp_path / "m"
    assert np.array_equal(phi3(path), phi3(path, apart))


def test_a_part_gives_back_its_own_bytes():
    released = []
    whole = Weight("w", 0, (6, 4), np.arange(96, dtype=np.uint8).reshape(6, 16), lambda *span: released.append(span))
    parts = split({"w": whole}, "w", {"a": 2, "b": 3, "c": 1})
    assert [part.shape for part in parts.values()] == [(2, 4), (3, 4), (1, 4)]
    assert parts["b"].data[0, 0] == 32 and np.shares_memory(parts["b"].data, whole.data)
    parts["b"].release(16, 8)
    assert released == [(48, 8)]
    assert parts["b"].tensor == whole.tensor == "w"


@pytest.mark.parametrize("original, used, unused", [(2047, "long", "short"), (2048, "short", "long")])
def test_factors_of_longrope_are_chosen_by_the_models_context(tmp_path, original, used, unused):
    path = tmp_path / "m"
    found = phi3(path, original_context_length=original)

    def without(name):
        return lambda weights: {key: w for key, w in weights.items() if key != f"rope_factors_{name}.weight"}

    assert np.array_equal(found, phi3(path, without(unused)))
    assert not np.array_equal(found, phi3(path, without(used)))


def test_a_tensor_of_the_wrong_height_is_refused(tmp_path):
    def shorter(weights):
        name = "blk.1.attn_qkv.weight"
        return weights | {name: weights[name]._replace(shape=(143, 64))}

    with pytest.raises(UnsupportedModel) as caught:
        phi3(tmp_path / "m", shorter)
    assert caught.value.name == "WRONG_SHAPE"


def test_inputs_are_named_as_the_file_names_its_tensors(tmp_path):
    """An importance matrix is for the tensors of the file."""
    watched = Inputs(lambda name: True)
    with open_model_file(write_tiny_family(tmp_path / "m", "phi3")) as file:
        Engine(file.gguf, file.weights, threads=1, watch=watched).close()
        assert set(watched.tap_of) <= set(file.gguf.tensors)
    assert {"blk.0.attn_qkv.weight", "blk.0.ffn_up.weight"} <= set(watched.tap_of)
