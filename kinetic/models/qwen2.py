"""Qwen 2 and 2.5 (dense): the llama block with biases on queries, keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import pre_normed
from kinetic.layers.head import logits
from kinetic.models.family import Family
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, blocks, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "qwen2")
    extra = biases(dense, ("attn_q", "attn_k", "attn_v")) | {"output.bias": (dense.vocab_size,)}
    check(weights, dense, blocks(dense, ("attn_norm", "ffn_norm")), extra)
    rope = read_rope(gguf, "qwen2", dense, interleaved=False)
    layers = dense.attention()

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            x = pre_normed(ops, weights, f"blk.{i}.", x, spec, rope, dense.eps)
        return logits(ops, weights, x, dense.eps)

    return Family("qwen2", dense.vocab_size, dense.context_length, layers, forward)
