"""gpt-oss: sinks in attention, windows in every other layer, and experts with biases and an activation of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Routing, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import mixture_mlp
from kinetic.models.attention_settings import sliding_windows
from kinetic.models.experts import Mixture, Shapes, expert_width, feed_forward_shapes, read_mixture
from kinetic.models.family import Family, expect_no_others, expect_shapes, optional, refuse
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "gpt-oss"

PATTERN = 2
"""Layer i sees all keys when i + 1 is a multiple of this."""


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, NAME)
    if dense.rope_width != dense.head_dim:
        message = f"'{NAME}.rope.dimension_count' is {dense.rope_width}; this family rotates whole heads"
        raise refuse("BAD_ROPE_WIDTH", f"{message} of {dense.head_dim}")
    mixture = read_mixture(gguf, NAME, expert_width(gguf, NAME, dense))
    mixture = replace(mixture, routing=Routing(mixture.routing.used, "softmax_chosen", normalised=False))
    _check(weights, dense, mixture)
    windows = sliding_windows(gguf, NAME, dense, PATTERN)
    if not windows:
        raise refuse("BAD_SETTING", f"'{NAME}.attention.sliding_window' is missing or 0; every other layer needs it")
    layers = dense.attention(windows=windows)
    ropes = {False: read_rope(gguf, NAME, dense, interleaved=False)}
    ropes[True] = read_rope(gguf, NAME, replace(dense, rope_base=_local_base(gguf, dense)), interleaved=False)

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], dense.eps)
            x = ops.add(x, grouped_query(ops, weights, prefix, normed, spec, ropes[spec.window > 0]))
            normed = ops.rms_norm(x, weights[f"{prefix}post_attention_norm.weight"], dense.eps)
            x = ops.add(x, mixture_mlp(ops, weights, prefix, normed, mixture.routing, "swiglu_oai"))
        return logits(ops, weights, x, dense.eps)

    return Family(NAME, dense.vocab_size, dense.context_length, layers, forward)


def _local_base(gguf: Gguf, d: Dense) -> float:
    """The rotary base of layers with a window."""
    key = f"{NAME}.rope.freq_base_swa"
    base: float = gguf.get(key, "float", d.rope_base)
    if not (math.isfinite(base) and base > 1.0):
        raise refuse("BAD_SETTING", f"'{key}' is {base}; it must be a number above 1")
    return base


def _check(weights: Weights, d: Dense, mixture: Mixture) -> None:
    e, q, kv, x = d.width, d.heads * d.head_dim, d.kv_heads * d.head_dim, mixture.count
    needed: Shapes = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    needed["output.weight"] = (d.vocab_size, e)
    extra: Shapes = {}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}post_attention_norm.weight": (e,)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_output.weight": (e, q), f"{p}attn_output.bias": (e,), f"{p}attn_sinks.weight": (d.heads,)}
        extra |= {f"{p}attn_q.bias": (q,), f"{p}attn_k.bias": (kv,), f"{p}attn_v.bias": (kv,)}
        needed |= feed_forward_shapes(p, e, mixture) | {f"{p}ffn_gate_inp.bias": (x,)}
        needed |= {f"{p}ffn_{name}_exps.bias": (x, mixture.ffn) for name in ("gate", "up")}
        needed[f"{p}ffn_down_exps.bias"] = (x, e)
    present = needed | optional(weights, extra)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
