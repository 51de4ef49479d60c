"""Qwen 3 (dense): the llama block with query and key heads normed before rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp
from kinetic.models.family import Family, expect_no_others, expect_shapes, optional, rotary
from kinetic.models.settings import Dense, linear_rope_factor, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "qwen3")
    _check(weights, dense)
    factor = linear_rope_factor(gguf, "qwen3")
    rope = rotary(dense.rope_base, dense.rope_width, dense.context_length, interleaved=False, factor=factor)
    layers = tuple(Attention(i, dense.heads, dense.kv_heads, dense.head_dim, dense.scale) for i in range(dense.layers))

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], dense.eps)
            x = ops.add(x, grouped_query(ops, weights, prefix, normed, spec, rope, norm_eps=dense.eps))
            normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], dense.eps)
            x = ops.add(x, gated_mlp(ops, weights, prefix, normed, "silu"))
        return logits(ops, weights, x, dense.eps)

    return Family("qwen3", dense.vocab_size, dense.context_length, layers, forward)


def _check(weights: Weights, d: Dense) -> None:
    e, q, kv = d.width, d.heads * d.head_dim, d.kv_heads * d.head_dim
    needed: dict[str, tuple[int, ...]] = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,)}
        needed |= {f"{p}attn_q_norm.weight": (d.head_dim,), f"{p}attn_k_norm.weight": (d.head_dim,)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_output.weight": (e, q), f"{p}ffn_down.weight": (e, d.ffn)}
        needed |= {f"{p}ffn_gate.weight": (d.ffn, e), f"{p}ffn_up.weight": (d.ffn, e)}
    present = needed | optional(weights, {"output.weight": (d.vocab_size, e)})
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
