"""Gemma 4 (text): two kinds of layers, with heads and rotations of their own.

Some layers read the keys and values of an earlier one, some models add an embedding of the token in every layer, and
some have experts beside the dense block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Rope, Routing, Weights
from kinetic.layers.attention import project
from kinetic.layers.head import logits
from kinetic.layers.mlp import experts_of, gated_mlp
from kinetic.layers.norm import plain_norm
from kinetic.models.family import Family
from kinetic.models.gemma4_settings import Layer, Settings, read
from kinetic.models.gemma4_tensors import check, with_gate_and_up_apart

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    s = read(gguf, weights)
    check(weights, s)
    weights = with_gate_and_up_apart(weights, s)

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), math.sqrt(s.width))
        extra = _per_layer(ops, weights, x, s) if s.per_layer_width else None
        for i, layer in enumerate(s.layers):
            p = f"blk.{i}."
            x = _attention(ops, weights, p, x, layer, s.eps)
            x = _feed_forward(ops, weights, p, x, layer.routing, s)
            if extra is not None:
                part = ops.cut(extra, 1, i * s.per_layer_width, s.per_layer_width)
                x = _with_embedding(ops, weights, p, x, part, s.eps)
            if layer.output_scale is not None:
                x = ops.scale(x, layer.output_scale)
        y = logits(ops, weights, x, s.eps)
        return ops.softcap(y, s.softcap) if s.softcap else y

    stored = tuple(layer.spec for layer in s.layers if layer.stores)
    return Family("gemma4", s.vocab_size, s.context_length, stored, forward)


def _per_layer(ops: Ops, weights: Weights, x: Array, s: Settings) -> Array:
    """What each layer adds of the token itself, side by side: [T, layers * per-layer width]."""
    table = ops.scale(ops.embed(weights["per_layer_token_embd.weight"]), math.sqrt(s.per_layer_width))
    seen = ops.scale(project(ops, weights, "per_layer_model_proj", x), 1.0 / math.sqrt(s.width))
    normed = ops.rms_norm(seen, weights["per_layer_proj_norm.weight"], s.eps)
    return ops.scale(ops.add(normed, table), 1.0 / math.sqrt(2.0))


def _attention(ops: Ops, weights: Weights, p: str, x: Array, layer: Layer, eps: float) -> Array:
    """Norms stand before and after; values are normed too, and are the keys where the file has none."""
    spec, rope = layer.spec, layer.rope
    normed = ops.rms_norm(x, weights[f"{p}attn_norm.weight"], eps)
    q = _turned(ops, weights, f"{p}attn_q", project(ops, weights, f"{p}attn_q", normed), spec, rope, eps)
    k = v = None
    if layer.stores:
        raw = project(ops, weights, f"{p}attn_k", normed)
        has_values = f"{p}attn_v.weight" in weights
        v = plain_norm(ops, project(ops, weights, f"{p}attn_v", normed) if has_values else raw, spec.head_dim, eps)
        k = _turned(ops, weights, f"{p}attn_k", raw, spec, rope, eps)
    y = project(ops, weights, f"{p}attn_output", ops.attend(q, k, v, spec))
    return ops.add(x, ops.rms_norm(y, weights[f"{p}post_attention_norm.weight"], eps))


def _turned(ops: Ops, weights: Weights, name: str, y: Array, spec: Attention, rope: Rope, eps: float) -> Array:
    return ops.rope(ops.rms_norm(y, weights[f"{name}_norm.weight"], eps), rope, spec.head_dim)


def _feed_forward(ops: Ops, weights: Weights, p: str, x: Array, routing: Routing | None, s: Settings) -> Array:
    def normed(y: Array, name: str) -> Array:
        return ops.rms_norm(y, weights[f"{p}{name}.weight"], s.eps)

    y = gated_mlp(ops, weights, p, normed(x, "ffn_norm"), "gelu")
    if routing is not None:
        gates = ops.rms_norm(x, weights[f"{p}ffn_gate_inp.scale"], s.eps)
        # Not `project`: what the file calls the scale of this matrix are the weights of the norm before it.
        scores = ops.linear(ops.scale(gates, 1.0 / math.sqrt(s.width)), weights[f"{p}ffn_gate_inp.weight"])
        routes = ops.route(scores, routing, factors=weights.get(f"{p}ffn_down_exps.scale"))
        made = ops.experts(normed(x, "pre_ffw_norm_2"), routes, experts_of(weights, p, "gelu"))
        y = ops.add(normed(y, "post_ffw_norm_1"), normed(made, "post_ffw_norm_2"))
    return ops.add(x, normed(y, "post_ffw_norm"))


def _with_embedding(ops: Ops, weights: Weights, p: str, x: Array, part: Array, eps: float) -> Array:
    """``part`` [T, per-layer width] is let in as far as x asks for it."""
    y = project(ops, weights, f"{p}proj", ops.gated(project(ops, weights, f"{p}inp_gate", x), part, "gelu"))
    return ops.add(x, ops.rms_norm(y, weights[f"{p}post_norm.weight"], eps))
