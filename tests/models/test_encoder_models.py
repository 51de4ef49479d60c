"""What files of embedding models may say, and what is refused."""

from __future__ import annotations

import pytest

from kinetic import models
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from kinetic.models import ARCHITECTURES, EMBEDDING_ARCHITECTURES
from tests.support.tiny_encoders import KINDS, LABELS, write_tiny_encoder
from tests.support.tiny_models import write_tiny_llama


def family_of(path, **changed):
    """The family of a file, with some of its tensors taken away."""
    with open_model_file(path) as file:
        without = changed.get("without", ())
        weights = {name: weight for name, weight in file.weights.items() if not name.startswith(without)}
        return models.build(file.gguf, weights)


def refused(path, **changed):
    with pytest.raises(UnsupportedModel) as caught:
        family_of(path, **changed)
    return caught.value.name


def test_the_families():
    assert set(EMBEDDING_ARCHITECTURES) < set(ARCHITECTURES)
    assert set(EMBEDDING_ARCHITECTURES) == set(KINDS) - {"qwen3"}


@pytest.mark.parametrize(
    "name, pooling, rank_pooling, ranks",
    [
        ("bert", "cls", "cls", True),
        ("nomic-bert", "mean", "cls", False),
        ("gemma-embedding", "mean", "cls", False),
        ("qwen3", "rank", "last", True),
    ],
)
def test_how_texts_become_vectors(tmp_path, name, pooling, rank_pooling, ranks):
    family = family_of(write_tiny_encoder(tmp_path / "m.gguf", name))
    embedding = family.embedding
    assert (embedding.pooling, embedding.rank_pooling) == (pooling, rank_pooling)
    assert (embedding.rank is not None) == ranks
    assert embedding.only == embedding.both_ways == (name != "qwen3")
    assert all(spec.causal == (name == "qwen3") for spec in family.attention)
    assert embedding.labels == (tuple(LABELS) if name == "qwen3" else ())


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    """Heads of another width than the matrices make, and a last dense layer that reads what nobody makes."""
    wider = dict.fromkeys(("attention.key_length", "attention.value_length"), 64)
    assert refused(write_tiny_encoder(tmp_path / "m.gguf", "bert", keys=wider)) == "WRONG_SHAPE"
    gemma = write_tiny_encoder(tmp_path / "m.gguf", "gemma-embedding")
    assert refused(gemma, without=("dense_2",)) == "MISSING_TENSOR"
    gemma = write_tiny_encoder(tmp_path / "m.gguf", "gemma-embedding", keys={"rope.freq_base_swa": -1.0})
    assert refused(gemma) == "BAD_SETTING"


def test_windows_of_gemma(tmp_path):
    family = family_of(write_tiny_encoder(tmp_path / "m.gguf", "gemma-embedding"))
    assert [spec.window for spec in family.attention] == [20] * 5 + [0]


def test_a_mean_before_the_rank_head(tmp_path):
    path = write_tiny_encoder(tmp_path / "m.gguf", "bert", keys={"classifier.pooling_type": 1})
    assert family_of(path).embedding.rank_pooling == "mean"


def test_what_may_be_left_out(tmp_path):
    bert = write_tiny_encoder(tmp_path / "bert.gguf", "bert")
    assert family_of(bert, without=("cls.weight", "cls.bias")).embedding.rank is not None
    assert family_of(bert, without=("cls.",)).embedding.rank is None
    assert family_of(bert, without=("token_types", "blk.0.attn_q.bias"))
    gemma = write_tiny_encoder(tmp_path / "gemma.gguf", "gemma-embedding")
    assert family_of(gemma).embedding.project is not None
    assert family_of(gemma, without=("dense_",)).embedding.project is None


def test_what_is_refused(tmp_path):
    def bert(**keys):
        return write_tiny_encoder(tmp_path / "m.gguf", "bert", keys=keys)

    assert refused(bert(pooling_type=5)) == "UNSUPPORTED_POOLING"
    assert refused(bert(**{"attention.causal": True})) == "UNSUPPORTED_ATTENTION"
    assert refused(bert(context_length=320)) == "WRONG_SHAPE"
    for name in ("position_embd", "blk.1.layer_output_norm.bias", "blk.0.attn_k.weight"):
        assert refused(bert(), without=(name,)) == "MISSING_TENSOR"
    nomic = write_tiny_encoder(tmp_path / "n.gguf", "nomic-bert", keys={"rope.scaling.type": "longrope"})
    assert refused(nomic) == "UNSUPPORTED_ROPE"
    llama = write_tiny_llama(tmp_path / "l.gguf", keys={"llama.attention.causal": False})
    assert refused(llama) == "UNSUPPORTED_ATTENTION"
