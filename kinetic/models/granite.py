"""Granite 3 and 4 (dense): the llama block with scales on embeddings, attention, what is added, and logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp
from kinetic.models.attention_settings import attention_scale
from kinetic.models.family import Family, refuse, rope_divisors
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, blocks, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "granite")
    if gguf.get("granite.expert_count", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "this file is a mixture of experts, which this build cannot run")
    extra = biases(dense, BIASES) | {"rope_freqs.weight": (dense.rope_width // 2,)}
    check(weights, dense, blocks(dense, ("attn_norm", "ffn_norm")), extra)
    rope: Rope | None = read_rope(gguf, "granite", dense, interleaved=True, divisors=rope_divisors(weights))
    if not gguf.get("granite.rope.scaling.finetuned", "bool", True):
        rope = None  # Granite's switch for models without positions
    layers = dense.attention(attention_scale(gguf, "granite", dense))
    embedding, residual = (_scale(gguf, name, 0.0) or 1.0 for name in ("embedding_scale", "residual_scale"))
    divisor = _scale(gguf, "logit_scale")
    if divisor == 0:
        raise refuse("BAD_SETTING", "'granite.logit_scale' is 0; logits cannot be divided by it")

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), embedding)
        for i, spec in enumerate(layers):
            x = _layer(ops, weights, f"blk.{i}.", x, spec, rope, dense.eps, residual)
        return ops.scale(logits(ops, weights, x, dense.eps), 1.0 / divisor)

    return Family("granite", dense.vocab_size, dense.context_length, layers, forward)


def _scale(gguf: Gguf, name: str, default: float | None = None) -> float:
    key = f"granite.{name}"
    value: float = gguf.get(key, "float") if default is None else gguf.get(key, "float", default)
    if not math.isfinite(value):
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must be a finite number")
    return value


def _layer(
    ops: Ops, weights: Weights, p: str, x: Array, spec: Attention, rope: Rope | None, eps: float, residual: float
) -> Array:
    """What each half adds is scaled first."""
    normed = ops.rms_norm(x, weights[f"{p}attn_norm.weight"], eps)
    x = ops.add(x, ops.scale(grouped_query(ops, weights, p, normed, spec, rope), residual))
    normed = ops.rms_norm(x, weights[f"{p}ffn_norm.weight"], eps)
    return ops.add(x, ops.scale(gated_mlp(ops, weights, p, normed, "silu"), residual))
