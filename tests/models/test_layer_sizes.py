"""Files whose layers differ: lists of heads and lengths, and what of Gemma 4 this build refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.base import Attention
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.weights import WeightStore
from kinetic.errors import UnsupportedModel
from kinetic.layers.fused import split_experts
from kinetic.loader import open_model_file
from tests.support import tiny_models as tiny
from tests.support.backends import assert_same
from tests.support.blocks import random_weight
from tests.support.tiny_families import KINDS, write_tiny_family
from tests.support.tiny_gemma4 import EXTRA, WIDTH, write_tiny_gemma4
from tests.support.whole_models import feed, program_of, tokens_of


def refusal(path):
    with open_model_file(path) as file, pytest.raises(UnsupportedModel) as caught:
        models.build(file.gguf, file.weights)
    return caught.value.name, str(caught.value)


# --- llama ---


def write_pruned(path, heads=(4, 2, 6), kv_heads=(2, 2, 1), ffn=(96, 32, 64), keys=None):
    """A llama whose layers were made smaller, each by another share."""
    tokenizer = tiny.chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    s = tiny.Shape(len(heads), 64, heads[0], kv_heads[0], 16, ffn[0], count, tiny.GEMMA_MIX, 9)
    tensors = [("token_embd.weight", (count, 64), 3.0 / math.sqrt(64)), ("output_norm.weight", (64,), 0.2)]
    for i in range(len(heads)):
        one = tiny.Shape(1, 64, heads[i], kv_heads[i], 16, ffn[i], count)
        tensors += tiny._layer(f"blk.{i}.", one, ("attn_norm", "ffn_norm"))
    lists = {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "feed_forward_length": ffn}
    metadata = tiny._settings("llama", s, 2048) | tokenizer | {f"llama.{key}": [*n] for key, n in lists.items()}
    return tiny._write(path, {k: v for k, v in (metadata | (keys or {})).items() if v is not None}, s, tensors)


def test_a_llama_with_lists(tmp_path):
    with open_model_file(write_pruned(tmp_path / "m.gguf")) as file:
        assert models.build(file.gguf, file.weights).attention == (
            Attention(0, 4, 2, 16, 0.25), Attention(1, 2, 2, 16, 0.25), Attention(2, 6, 1, 16, 0.25),
        )  # fmt: skip
        found = {}
        for backend in ("reference", "cpu"):
            with program_of(file, backend, threads=2) as program:
                found[backend] = feed(program, tokens_of(3, 20), [9, 1, 10])
        assert_same(found["cpu"], found["reference"])


def test_a_list_of_equal_numbers_is_one_number(tmp_path):
    rows = []
    for number, keys in enumerate(({}, {"attention.head_count": [6, 6], "feed_forward_length": [96, 96, 96]})):
        path = write_tiny_family(tmp_path / f"{number}.gguf", "qwen2", keys=keys)
        with open_model_file(path) as file, program_of(file) as program:
            rows.append(feed(program, tokens_of(3, 5), [5]))
    assert_same(rows[1], rows[0])


@pytest.mark.parametrize(
    "values, name, words",
    [
        ({"llama.attention.head_count": [4, 2]}, "BAD_SETTING", "one for each of the 3 layers"),
        ({"llama.attention.head_count": [4, 0, 6]}, "UNSUPPORTED_LAYERS", "layer 1 has no attention"),
        ({"llama.attention.head_count": [4, 3, 6]}, "BAD_HEAD_COUNT", "3 query heads cannot share 2"),
        ({"llama.attention.head_count": [4, -2, 6]}, "UNSUPPORTED_LAYERS", "layer 1 has no attention"),
        ({"llama.attention.head_count_kv": [2, 0, 1]}, "UNSUPPORTED_LAYERS", "layer 1 has no attention"),
        ({"llama.feed_forward_length": [96, 32, 0]}, "UNSUPPORTED_LAYERS", "layer 2 has no attention or no feed"),
        ({"llama.feed_forward_length": [96, 64, 64]}, "WRONG_SHAPE", "blk.1.ffn_gate.weight"),
        (
            {"llama.attention.key_length": None, "llama.attention.value_length": None, "llama.rope.dimension_count": 8,
             "llama.attention.head_count": [4, 2, 8]},
            "BAD_HEAD_COUNT", "no key says how wide heads are",
        ),
        ({"llama.expert_count": 4, "llama.expert_used_count": 1}, "UNSUPPORTED_LAYERS", "experts of different sizes"),
    ],
)  # fmt: skip
def test_lists_that_make_no_sense(tmp_path, values, name, words):
    found, message = refusal(write_pruned(tmp_path / "m.gguf", keys=values))
    assert (found, words in message) == (name, True), message


def test_other_families_refuse_layers_that_differ(tmp_path):
    keys = {"attention.head_count": [6, 4]}
    found, message = refusal(write_tiny_family(tmp_path / "m.gguf", "qwen2", keys=keys))
    assert (found, "qwen2.attention.head_count" in message) == ("UNSUPPORTED_LAYERS", True)


def test_a_list_of_heads_is_checked_as_one_number_is(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "qwen2", replace(KINDS["qwen2"], heads=(6, 4, 48)))
    found, message = refusal(write_tiny_family(tmp_path / "m.gguf", "qwen2", keys={"attention.head_count": [6, 6]}))
    assert (found, "6 query heads cannot share 4" in message) == ("BAD_HEAD_COUNT", True)


# --- gemma4 ---


def test_layers_that_read_those_of_others(tmp_path):
    with open_model_file(write_tiny_gemma4(tmp_path / "m.gguf")) as file:
        family = models.build(file.gguf, file.weights)
    assert [(spec.layer, spec.head_dim, spec.window) for spec in family.attention] == [
        (0, 32, 64), (1, 32, 64), (2, 48, 0), (3, 32, 64),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "keys, tensors, name, words",
    [
        ({"attention.shared_kv_layers": 6}, {}, "BAD_SETTING", "must leave one of the 6 layers"),
        ({"attention.shared_kv_layers": 4}, {}, "UNSUPPORTED_LAYERS", "layer 2 shares keys, and no layer of its kind"),
        ({"attention.head_count_kv": [2, 1, 1, 2, 4, 1]}, {}, "BAD_HEAD_COUNT", "layer 4 shares keys of 2 heads"),
        ({"attention.sliding_window_pattern": 4}, {}, "BAD_SETTING", "must say of each of the 6 layers"),
        ({"attention.sliding_window_pattern": [True]}, {}, "BAD_SETTING", "must say of each of the 6 layers"),
        ({"attention.sliding_window": None}, {}, "BAD_SETTING", "some layers have a window"),
        ({"attention.value_length_swa": 16}, {}, "UNSUPPORTED_HEADS", "value heads of width 16"),
        ({"rope.dimension_count_swa": 33}, {}, "BAD_ROPE_WIDTH", "33"),
        ({"rope.freq_base_swa": 0.5}, {}, "BAD_SETTING", "0.5"),
        ({"rope.scaling.factor": 8.0}, {}, "UNSUPPORTED_ROPE", "stretched"),
        ({"rope.scaling.type": "yarn"}, {}, "UNSUPPORTED_ROPE", "yarn"),
        ({"final_logit_softcapping": -1.0}, {}, "BAD_SETTING", "must not be negative"),
        ({"final_logit_softcapping": float("nan")}, {}, "BAD_SETTING", "must not be negative"),
        ({}, {"rope_freqs.weight": None}, "MISSING_TENSOR", "rope_freqs"),
        ({}, {"rope_freqs.weight": (3,)}, "WRONG_SHAPE", "rope_freqs"),
        ({}, {"per_layer_proj_norm.weight": None}, "MISSING_TENSOR", "per_layer_proj_norm"),
        ({}, {"blk.0.inp_gate.weight": (EXTRA, 2 * WIDTH)}, "WRONG_SHAPE", "inp_gate"),
        ({}, {"blk.1.ffn_gate_inp.scale": None}, "MISSING_TENSOR", "ffn_gate_inp.scale"),
        ({}, {"blk.1.ffn_up_exps.scale": (6,)}, "EXTRA_TENSOR", "ffn_up_exps.scale"),
        ({"expert_count": 0}, {}, "EXTRA_TENSOR", "blk.1.ffn_"),
        ({}, {"blk.0.layer_output_scale.weight": (2,)}, "WRONG_SHAPE", "layer_output_scale"),
    ],
)
def test_what_is_refused(tmp_path, keys, tensors, name, words):
    keys = {f"gemma4.{key}": value for key, value in keys.items()}
    found, message = refusal(write_tiny_gemma4(tmp_path / "m.gguf", keys=keys, tensors=tensors))
    assert (found, words in message) == (name, True), message


def test_keys_that_a_sharing_layer_has_for_itself_are_not_read(tmp_path):
    """Their file has them, or not: the answer is the same."""
    rows = []
    for number, tensors in enumerate(({}, {f"blk.4.attn_{part}.weight": None for part in ("k", "v", "k_norm")})):
        with open_model_file(write_tiny_gemma4(tmp_path / f"{number}.gguf", tensors=tensors)) as file:
            models.build(file.gguf, file.weights)
            rows.append(set(file.weights))
    assert len(rows[0]) - len(rows[1]) == 3


# --- gate and up of experts in one tensor ---


def test_parts_of_every_expert():
    """Packed as if each were a tensor of its own; each byte of the file is given back once."""
    count, rows, width = 3, (16, 21), 64
    data = random_weight("both", "Q4_0", count * sum(rows), width, 5)
    given_back = []
    whole = data._replace(
        shape=(count, sum(rows), width),
        release=lambda offset, length: given_back.extend(range(offset, offset + length)),
    )
    parts = split_experts({"both": whole}, "both", {"gate": rows[0], "up": rows[1]})
    assert {part.tensor for part in parts.values()} == {"both"}
    bytes_of = whole.data.reshape(count, sum(rows), -1)
    alone = {
        "gate": np.ascontiguousarray(bytes_of[:, : rows[0]]).reshape(count * rows[0], -1),
        "up": np.ascontiguousarray(bytes_of[:, rows[0] :]).reshape(count * rows[1], -1),
    }
    own = [parts[name]._replace(name=f"own {name}", data=raw, release=lambda *_: None) for name, raw in alone.items()]
    store = WeightStore(native.Kernels(target.choose(), [whole.ggml_type]), [*parts.values(), *own], threads=2)
    for name in alone:
        packed = store.packed(parts[name]).data
        assert np.array_equal(packed, store.packed(next(w for w in own if w.name == f"own {name}")).data)
    assert sorted(given_back) == list(range(whole.data.nbytes))
    given_back.clear()
    parts["up"].release(0, parts["up"].data.nbytes)
    row = whole.data.shape[1]
    wanted = [range((e * 37 + 16) * row, (e + 1) * 37 * row) for e in range(count)]
    assert given_back == [byte for span in wanted for byte in span]
    store.close()
