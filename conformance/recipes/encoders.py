"""Models that make vectors of texts, one of each family that writes none. All are of several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conformance.recipes.model import Model, Sizes, Tensor, bias, layer, matrix, norm, settings
from conformance.recipes.near_llama import MIXED
from conformance.recipes.tokenizers import byte_level

BERT = Sizes(2, 64, 4, 4, 16, 96)
GEMMA = Sizes(6, 64, 4, 1, 32, 96)
"""Five layers with a window, and one without."""

CONTEXT = 512
ENCODER = {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12, "context_length": CONTEXT}
NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")


def bert() -> Model:
    """Positions and token types from tables, biases."""
    s = BERT
    tensors = [*_encoder(s), Tensor("position_embd.weight", (CONTEXT, s.width), 0.5)]
    biases = {"attn_q": s.width, "attn_k": s.width, "attn_v": s.width, "attn_output": s.width, "ffn_up": s.ffn}
    for number in range(s.layers):
        p = f"blk.{number}."
        tensors += [_matrix(f"{p}attn_{name}", s.width, s.width) for name in "qkv"]
        tensors += [bias(f"{p}{name}", length) for name, length in (biases | {"ffn_down": s.width}).items()]
    return _model("bert", s, tensors, ENCODER | {"pooling_type": 2}, seed=131)


def nomic_bert() -> Model:
    """Rotated positions, queries, keys and values in one tensor, a gate."""
    s = BERT
    tensors = _encoder(s)
    for number in range(s.layers):
        tensors.append(_matrix(f"blk.{number}.attn_qkv", 3 * s.width, s.width))
        tensors.append(_matrix(f"blk.{number}.ffn_gate", s.ffn, s.width))
    return _model("nomic-bert", s, tensors, ENCODER | {"pooling_type": 1}, seed=132)


def gemma_embedding() -> Model:
    """Windows both ways, and dense layers after the pooling."""
    s = GEMMA
    tensors = [matrix("token_embd", _count(), s.width, 3.0), norm("output_norm", s.width)]
    tensors += [_matrix("dense_2", 96, s.width), _matrix("dense_3", s.width, 96)]
    for number in range(s.layers):
        tensors += layer(number, s, NORMS, normed_heads=True)
    widths = {"dense_2_feat_in": 64, "dense_2_feat_out": 96, "dense_3_feat_in": 96, "dense_3_feat_out": 64}
    keys = widths | {"attention.sliding_window": 20, "context_length": CONTEXT, "pooling_type": 1}
    return _model("gemma-embedding", s, tensors, keys, seed=133)


ENCODERS: Mapping[str, Callable[[], Model]] = {
    "bert": bert,
    "nomic-bert": nomic_bert,
    "gemma-embedding": gemma_embedding,
}
"""By family."""


def _count() -> int:
    return len(byte_level()["tokenizer.ggml.tokens"])


def _matrix(name: str, rows: int, columns: int) -> Tensor:
    return matrix(name, rows, columns, 1.5)


def _encoder(s: Sizes) -> list[Tensor]:
    """What BERT and Nomic BERT have in common."""
    tensors = [Tensor("token_embd.weight", (_count(), s.width), 1.0), Tensor("token_types.weight", (2, s.width), 0.5)]
    norms = ["token_embd_norm"]
    for number in range(s.layers):
        p = f"blk.{number}."
        norms += [f"{p}attn_output_norm", f"{p}layer_output_norm"]
        tensors += [_matrix(f"{p}attn_output", s.width, s.width), _matrix(f"{p}ffn_up", s.ffn, s.width)]
        tensors.append(_matrix(f"{p}ffn_down", s.width, s.ffn))
    for name in norms:
        tensors += [norm(name, s.width), bias(name, s.width)]
    return tensors


def _model(architecture: str, s: Sizes, tensors: list[Tensor], keys: Mapping[str, Any], seed: int) -> Model:
    metadata = (
        settings(architecture, s) | byte_level() | {f"{architecture}.{key}": value for key, value in keys.items()}
    )
    return Model(metadata, tensors, MIXED, seed)
