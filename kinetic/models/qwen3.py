"""Qwen 3 (dense): the llama block with query and key heads normed before rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import pre_normed
from kinetic.layers.head import logits
from kinetic.models.encoders import rank_shapes
from kinetic.models.family import Embedding, Family
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import blocks, check, head_norms

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "qwen3")
    needed = blocks(dense, ("attn_norm", "ffn_norm")) | head_norms(dense)
    check(weights, dense, needed, rank_shapes(gguf, dense))
    rope = read_rope(gguf, "qwen3", dense, interleaved=False)
    layers = dense.attention()

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            x = pre_normed(ops, weights, f"blk.{i}.", x, spec, rope, dense.eps, norm_eps=dense.eps)
        return logits(ops, weights, x, dense.eps)

    def rank(ops: Ops, x: Array) -> Array:
        return ops.linear(x, weights["cls.output.weight"])

    family = Family("qwen3", dense.vocab_size, dense.context_length, layers, forward)
    if "cls.output.weight" not in weights:
        return family
    return replace(family, embedding=Embedding(rank=rank, softmax=True))
