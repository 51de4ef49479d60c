"""BERT (and RoBERTa): positions from a table, a feed-forward of two matrices, a rank head where the file has one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.attention import project
from kinetic.layers.encoder import encoded, rank_head
from kinetic.models.encoders import EPS, both_ways, head_shapes, layer_shapes, table_shapes
from kinetic.models.family import Embedding, Family, expect_no_others, expect_shapes, optional
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, in_layers

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "bert", eps=EPS)
    q, kv = dense.heads * dense.head_dim, dense.kv_heads * dense.head_dim
    matrices = {"attn_q": (q, dense.width), "attn_k": (kv, dense.width), "attn_v": (kv, dense.width)}
    needed = layer_shapes(dense) | in_layers(dense, {f"{name}.weight": shape for name, shape in matrices.items()})
    needed["position_embd.weight"] = (dense.context_length, dense.width)
    allowed = table_shapes(gguf, dense) | head_shapes(gguf, dense) | biases(dense, BIASES)
    present = needed | optional(weights, allowed)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
    layers = both_ways(gguf, "bert", dense)

    def forward(ops: Ops) -> Array:
        def feed_forward(p: str, x: Array) -> Array:
            inner = ops.activate(project(ops, weights, f"{p}ffn_up", x), "gelu")
            return project(ops, weights, f"{p}ffn_down", inner)

        return encoded(ops, weights, layers, None, dense.eps, feed_forward)

    def rank(ops: Ops, x: Array) -> Array:
        return rank_head(ops, weights, x)

    embedding = Embedding(only=True, both_ways=True, rank=rank if "cls.output.weight" in weights else None)
    family = Family("bert", dense.vocab_size, dense.context_length, layers, forward)
    return replace(family, embedding=embedding)
