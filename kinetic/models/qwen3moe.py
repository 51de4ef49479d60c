"""Qwen 3 with experts: the block of Qwen 3 with a mixture for its feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import mixture_mlp
from kinetic.models.experts import check_mixture, expert_width, read_mixture
from kinetic.models.family import Family
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "qwen3moe")
    mixture = read_mixture(gguf, "qwen3moe", expert_width(gguf, "qwen3moe", dense))
    check_mixture(weights, dense, mixture, normed_heads=True)
    rope = read_rope(gguf, "qwen3moe", dense, interleaved=False)
    layers = tuple(Attention(i, dense.heads, dense.kv_heads, dense.head_dim, dense.scale) for i in range(dense.layers))

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], dense.eps)
            x = ops.add(x, grouped_query(ops, weights, prefix, normed, spec, rope, norm_eps=dense.eps))
            normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], dense.eps)
            x = ops.add(x, mixture_mlp(ops, weights, prefix, normed, mixture.routing, "silu"))
        return logits(ops, weights, x, dense.eps)

    return Family("qwen3moe", dense.vocab_size, dense.context_length, layers, forward)
