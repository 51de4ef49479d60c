"""Granite 3 with experts: the block of llama with a mixture, and what goes in and out of it scaled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.bits import round_f32
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.experts import Mixture, check_mixture, read_mixture
from kinetic.models.family import Family, refuse
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "granitemoe"


class Scales(NamedTuple):
    """Factors of the embedding, of what is added to the residual stream, of scores, and of logits."""

    embedding: float
    residual: float
    attention: float
    logits: float


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, NAME)
    mixture = read_mixture(gguf, NAME, dense.ffn, shared=True)
    check_mixture(weights, dense, mixture)
    scales = _scales(gguf, dense.scale)
    rope = read_rope(gguf, NAME, dense, interleaved=True)
    layers = tuple(
        Attention(i, dense.heads, dense.kv_heads, dense.head_dim, scales.attention) for i in range(dense.layers)
    )

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), scales.embedding)
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], dense.eps)
            attended = grouped_query(ops, weights, prefix, normed, spec, rope)
            x = ops.add(x, ops.scale(attended, scales.residual))
            normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], dense.eps)
            x = ops.add(x, ops.scale(_feed_forward(ops, weights, prefix, normed, mixture), scales.residual))
        return ops.scale(logits(ops, weights, x, dense.eps), scales.logits)

    return Family(NAME, dense.vocab_size, dense.context_length, layers, forward)


def _feed_forward(ops: Ops, weights: Weights, prefix: str, x: Array, mixture: Mixture) -> Array:
    """The mixture, and what the block for every row makes beside it."""
    mixed = mixture_mlp(ops, weights, prefix, x, mixture.routing, "silu")
    return ops.add(mixed, gated_mlp(ops, weights, prefix, x, "silu", "_shexp")) if mixture.shared else mixed


def _scales(gguf: Gguf, scale: float) -> Scales:
    """As the file has them: ``logit_scale`` divides, and one that is left out changes nothing. 0 is as left out."""
    divisor = _setting(gguf, "logit_scale") or 1.0
    return Scales(
        embedding=_setting(gguf, "embedding_scale") or 1.0,
        residual=_setting(gguf, "residual_scale") or 1.0,
        attention=_setting(gguf, "attention.scale") or scale,
        logits=float(round_f32(1.0 / divisor)),
    )


def _setting(gguf: Gguf, name: str) -> float:
    value: float = gguf.get(f"{NAME}.{name}", "float", 0.0)
    if not (math.isfinite(value) and value >= 0):
        raise refuse("BAD_SETTING", f"'{NAME}.{name}' is {value}; it must be a positive number")
    return value
