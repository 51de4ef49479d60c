"""Files of qwen35 and qwen35moe: what their settings mean, which are refused, and parts of tensors."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic import models
from kinetic.backends.base import Weight
from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type
from kinetic.layers.deltanet import HIDDEN
from kinetic.layers.fused import columns, interleaved
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same, loaded
from tests.support.blocks import normals, random_weight
from tests.support.tiny_recurrent import write_tiny_recurrent
from tests.support.whole_models import feed, program_of, tokens_of


def built(path):
    with open_model_file(path) as file:
        return models.build(file.gguf, file.weights)


def written(tmp_path, name="qwen35", **changes):
    return write_tiny_recurrent(tmp_path / "m.gguf", name, **changes)


def logits(path):
    with open_model_file(path) as file, program_of(file) as program:
        return feed(program, tokens_of(7, 9), [9])


@pytest.mark.parametrize(
    "keys, error, words",
    [
        ({"ssm.state_size": 40, "ssm.inner_size": 160}, "UNSUPPORTED_HEADS", "not a multiple of 16"),
        ({"ssm.state_size": 2048}, "BAD_SETTING", "between 1 and 1024"),
        ({"ssm.inner_size": 191}, "BAD_HEAD_COUNT", "4 heads of 48"),
        ({"ssm.group_count": 3}, "BAD_HEAD_COUNT", "3 keys"),
        ({"ssm.conv_kernel": 0}, "BAD_SETTING", "conv_kernel"),
        ({"ssm.time_step_rank": 0}, "BAD_SETTING", "time_step_rank"),
        ({"nextn_predict_layers": 2}, "UNSUPPORTED_LAYERS", "not 2"),
        ({"nextn_predict_layers": 4}, "BAD_SETTING", "in a file of 4"),
        ({"full_attention_interval": 0}, "BAD_SETTING", "full_attention_interval"),
        ({"attention.recurrent_layers": [True]}, "BAD_SETTING", "each of the 3 layers"),
        ({"attention.recurrent_layers": [True, True, True]}, "MISSING_TENSOR", "blk.2.attn_qkv"),
        ({"rope.dimension_sections": [0, 0, 0, 0]}, "BAD_SETTING", "counts of pairs"),
        ({"rope.dimension_sections": ["a", "b"]}, "BAD_SETTING", "counts of pairs"),
        ({"rope.dimension_sections": [2, 3, 3, 0]}, "UNSUPPORTED_ROPE", "pair 6"),
    ],
)
def test_refused(tmp_path, keys, error, words):
    with pytest.raises(UnsupportedModel, match=words) as caught:
        built(written(tmp_path, more=keys))
    assert caught.value.name == error


def test_layers_as_a_file_lists_them(tmp_path):
    """Lists go before intervals, and may go on to the layer that is none of the model's."""
    keys = {"attention.recurrent_layers": [True, True, False, False], "full_attention_interval": 2}
    family = built(written(tmp_path, more=keys))
    assert [spec.layer for spec in family.attention] == [2]
    assert sorted({state.layer for state in family.states}) == [0, 1]
    assert [spec.layer for spec in family.next_token.attention] == [3]


def test_without_the_layer_that_predicts(tmp_path):
    """Some files count it and leave it out; the logits are the same."""
    whole = logits(written(tmp_path))
    path = written(tmp_path, without="blk.3.")
    assert built(path).next_token is None
    assert_same(logits(path), whole)
    with pytest.raises(UnsupportedModel, match=r"nextn\.eh_proj"):
        built(written(tmp_path, without="blk.3.nextn.eh_proj"))


def test_experts_without_a_feed_forward_length(tmp_path):
    whole = logits(written(tmp_path, "qwen35moe"))
    assert_same(logits(written(tmp_path, "qwen35moe", more={"feed_forward_length": None})), whole)


def test_factors_of_products(tmp_path):
    """Of a whole tensor, so of each of its parts; halves and doubles are exact."""
    plain = logits(written(tmp_path))
    assert_same(logits(written(tmp_path, factors={"output": 0.5})), plain * np.float32(0.5))
    for name in ("blk.0.attn_qkv", "blk.2.attn_q", "blk.1.ssm_alpha", "blk.2.ffn_up"):
        changed = logits(written(tmp_path, factors={name: 0.5}))
        assert not np.array_equal(changed, plain), name
        assert_same(logits(written(tmp_path, factors={name: 1.0})), plain)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ssm_out\.scale") as caught:
        built(written(tmp_path, factors={"blk.0.ssm_out": np.inf}))
    assert caught.value.name == "NON_FINITE_SCALE"


@pytest.mark.parametrize("name", ["F32", "Q4_0", "Q4_K"])
def test_parts_with_gaps(name):
    """Each is the matrix that its rows and columns make up; memory is given back after the last of them."""
    released = []
    weight = random_weight("w", name, 12, 512, seed=3)._replace(release=lambda *place: released.append(place))
    values = by_type(weight.ggml_type, "w").decode(weight.data).reshape(12, 512)

    def decoded(part: Weight):
        data = np.ascontiguousarray(part.data).reshape(part.shape[0], -1)
        return by_type(part.ggml_type, part.name).decode(data).reshape(part.shape)

    rows = interleaved(weight, ["a", "b"], 3)
    halves = values.reshape(3, 2, 2, 512)
    for n, part in enumerate(rows.values()):
        assert np.shares_memory(part.data, weight.data) and part.tensor == "w"
        assert np.array_equal(decoded(part), halves[:, n].reshape(6, 512))
    sides = columns(weight, ["left", "right"])
    assert np.array_equal(decoded(sides["left"]), values[:, :256])
    assert np.array_equal(decoded(sides["right"]), values[:, 256:])
    size = sides["left"].data.nbytes
    sides["left"].release(0, size - 1)
    assert not released
    sides["left"].release(size - 1, 1)
    assert released == [(0, weight.data.nbytes)]


# --- the layer that predicts one token more ---


def passes(more, tokens, given, backend, threads, sizes):
    """Logits and hidden rows of all tokens, fed in pieces of ``sizes`` (the last repeats)."""
    found, at = [], 0
    with loaded(more.forward, more.attention, backend, threads) as program:
        while at < len(tokens):
            size = sizes[min(len(found), len(sizes) - 1)]
            piece = tuple(tokens[at : at + size])
            rows = tuple(range(len(piece)))
            batch = Batch(piece, tuple(at + row for row in rows), (0,) * len(rows), rows)
            found.append((program.run(batch, given[at : at + len(piece)]), program.taps()[HIDDEN]))
            at += len(piece)
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def test_next_token_in_every_way(tmp_path):
    """Longer than one pass with taps may be, which cuts what is given too."""
    more = built(written(tmp_path)).next_token
    tokens, given = tokens_of(9, 140), normals(9, 140, more.width)
    expected = passes(more, tokens, given, "cpu", 1, [140])
    for threads, sizes in ((1, [1]), (2, [140]), (2, [7, 64, 9]), (3, [33])):
        for found, wanted in zip(passes(more, tokens, given, "cpu", threads, sizes), expected, strict=True):
            assert_same(found, wanted, f"with pieces of {sizes}")
    for found, wanted in zip(passes(more, tokens[:20], given[:20], "reference", 1, [13]), expected, strict=True):
        assert_same(found, wanted[:20])
