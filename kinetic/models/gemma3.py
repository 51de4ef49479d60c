"""Gemma 3 (text). Five layers with a sliding window and their own rope base to each global one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.bits import round_f32
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp
from kinetic.models.family import Family, expect_no_others, expect_shapes, optional, rotary
from kinetic.models.rope_settings import linear_rope_factor
from kinetic.models.settings import Dense, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

PATTERN = 6
"""Layer i is global when (i + 1) is a multiple of this."""

NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")

LAYERS_OF_27B = 62
"""The 27B model alone scales its queries by the width per head instead of the head width."""


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "gemma3")
    _check(weights, dense)
    window = gguf.get("gemma3.attention.sliding_window", "int", 0)
    scale = dense.scale
    if dense.layers == LAYERS_OF_27B:
        scale = float(round_f32(1.0 / math.sqrt(dense.width / dense.heads)))
    local_base = gguf.get("gemma3.rope.freq_base_swa", "float", 10000.0)
    width, context, factor = dense.rope_width, dense.context_length, linear_rope_factor(gguf, "gemma3")
    ropes = {
        True: rotary(local_base, width, context, interleaved=False),
        False: rotary(dense.rope_base, width, context, interleaved=False, factor=factor),
    }
    local = [window > 0 and (i + 1) % PATTERN != 0 for i in range(dense.layers)]
    layers = tuple(
        Attention(i, dense.heads, dense.kv_heads, dense.head_dim, scale, window if local[i] else 0)
        for i in range(dense.layers)
    )
    embedding_scale = math.sqrt(dense.width)

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), embedding_scale)
        for i, spec in enumerate(layers):
            x = _layer(ops, weights, f"blk.{i}.", x, spec, ropes[local[i]], dense.eps)
        return logits(ops, weights, x, dense.eps)

    return Family("gemma3", dense.vocab_size, dense.context_length, layers, forward)


def _layer(ops: Ops, weights: Weights, p: str, x: Array, spec: Attention, rope: Rope, eps: float) -> Array:
    """Norms stand before and after both blocks."""
    normed = ops.rms_norm(x, weights[f"{p}attn_norm.weight"], eps)
    y = grouped_query(ops, weights, p, normed, spec, rope, norm_eps=eps)
    x = ops.add(x, ops.rms_norm(y, weights[f"{p}post_attention_norm.weight"], eps))
    normed = ops.rms_norm(x, weights[f"{p}ffn_norm.weight"], eps)
    y = gated_mlp(ops, weights, p, normed, "gelu")
    return ops.add(x, ops.rms_norm(y, weights[f"{p}post_ffw_norm.weight"], eps))


def _check(weights: Weights, d: Dense) -> None:
    e, q, kv = d.width, d.heads * d.head_dim, d.kv_heads * d.head_dim
    needed: dict[str, tuple[int, ...]] = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}{name}.weight": (e,) for name in NORMS}
        needed |= {f"{p}attn_q_norm.weight": (d.head_dim,), f"{p}attn_k_norm.weight": (d.head_dim,)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_output.weight": (e, q), f"{p}ffn_down.weight": (e, d.ffn)}
        needed |= {f"{p}ffn_gate.weight": (d.ffn, e), f"{p}ffn_up.weight": (d.ffn, e)}
    present = needed | optional(weights, {"output.weight": (d.vocab_size, e)})
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
