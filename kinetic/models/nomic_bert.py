"""Nomic BERT: rotated positions, queries, keys and values in one matrix, a gated feed-forward, no biases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.encoder import encoded
from kinetic.layers.fused import split
from kinetic.layers.mlp import gated_mlp
from kinetic.models.encoders import EPS, both_ways, layer_shapes, table_shapes
from kinetic.models.family import Embedding, Family, expect_no_others, expect_shapes, optional
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import in_layers

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "nomic-bert", eps=EPS)
    q, kv = dense.heads * dense.head_dim, dense.kv_heads * dense.head_dim
    matrices = {"attn_qkv.weight": (q + 2 * kv, dense.width), "ffn_gate.weight": (dense.ffn, dense.width)}
    present = layer_shapes(dense) | in_layers(dense, matrices) | optional(weights, table_shapes(gguf, dense))
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
    parts = dict(weights)
    for i in range(dense.layers):
        p = f"blk.{i}."
        rows = {f"{p}attn_q.weight": q, f"{p}attn_k.weight": kv, f"{p}attn_v.weight": kv}
        parts |= split(weights, f"{p}attn_qkv.weight", rows)
    rope = read_rope(gguf, "nomic-bert", dense, interleaved=False)
    layers = both_ways(gguf, "nomic-bert", dense)

    def forward(ops: Ops) -> Array:
        def feed_forward(p: str, x: Array) -> Array:
            return gated_mlp(ops, parts, p, x, "silu")

        return encoded(ops, parts, layers, rope, dense.eps, feed_forward)

    family = Family("nomic-bert", dense.vocab_size, dense.context_length, layers, forward)
    return replace(family, embedding=Embedding(only=True, both_ways=True))
