"""Whole layers that several families share: attention and a gated feed-forward, each added to the residual stream."""

from __future__ import annotations

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.mlp import gated_mlp


def pre_normed(
    ops: Ops,
    weights: Weights,
    prefix: str,
    x: Array,
    spec: Attention,
    rope: Rope | None,
    eps: float,
    *,
    norm_eps: float | None = None,
    norm_last: bool = False,
) -> Array:
    """x [T, E] -> [T, E]; a norm before either half, as in llama. The last two as in ``grouped_query``."""
    normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], eps)
    y = grouped_query(ops, weights, prefix, normed, spec, rope, norm_eps=norm_eps, norm_last=norm_last)
    x = ops.add(x, y)
    normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], eps)
    return ops.add(x, gated_mlp(ops, weights, prefix, normed, "silu"))


def normed_around(
    ops: Ops, weights: Weights, prefix: str, x: Array, spec: Attention, rope: Rope | None, eps: float
) -> Array:
    """x [T, E] -> [T, E]; norms before and after both halves, as in Gemma 3."""
    normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], eps)
    y = grouped_query(ops, weights, prefix, normed, spec, rope, norm_eps=eps)
    x = ops.add(x, ops.rms_norm(y, weights[f"{prefix}post_attention_norm.weight"], eps))
    normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], eps)
    y = gated_mlp(ops, weights, prefix, normed, "gelu")
    return ops.add(x, ops.rms_norm(y, weights[f"{prefix}post_ffw_norm.weight"], eps))


def post_normed(
    ops: Ops, weights: Weights, prefix: str, x: Array, spec: Attention, rope: Rope | None, eps: float
) -> Array:
    """x [T, E] -> [T, E]; a norm after either half and none before, and queries and keys normed before rotation."""
    y = grouped_query(ops, weights, prefix, x, spec, rope, norm_eps=eps)
    x = ops.add(x, ops.rms_norm(y, weights[f"{prefix}post_attention_norm.weight"], eps))
    y = gated_mlp(ops, weights, prefix, x, "silu")
    return ops.add(x, ops.rms_norm(y, weights[f"{prefix}post_ffw_norm.weight"], eps))
