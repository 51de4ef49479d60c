"""EmbeddingGemma: Gemma 3's layers, seeing both ways, with dense layers after the pooling where the file has them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import normed_around
from kinetic.models.attention_settings import sliding_windows
from kinetic.models.encoders import both_ways
from kinetic.models.family import Embedding, Family
from kinetic.models.rope_settings import attention_factor, plain_rope, read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import blocks, check, head_norms

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

PATTERN = 6
"""Layer i has no window when (i + 1) is a multiple of this."""

NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "gemma-embedding")
    inner = gguf.get("gemma-embedding.dense_2_feat_out", "int", 0) or gguf.get(
        "gemma-embedding.dense_3_feat_in", "int", 0
    )
    after = {"dense_2.weight": (inner, dense.width), "dense_2.bias": (inner,), "dense_3.weight": (dense.width, inner)}
    needed = blocks(dense, NORMS) | head_norms(dense)
    if "dense_3.weight" in weights:  # which reads what dense_2 makes
        needed["dense_2.weight"] = after["dense_2.weight"]
    check(weights, dense, needed, after)
    local_base = gguf.get("gemma-embedding.rope.freq_base_swa", "float", 10000.0)
    magnitude = attention_factor(gguf, "gemma-embedding")
    local = plain_rope(replace(dense, rope_base=local_base), interleaved=False, magnitude=magnitude)
    everywhere = read_rope(gguf, "gemma-embedding", dense, interleaved=False)
    layers = both_ways(gguf, "gemma-embedding", dense, sliding_windows(gguf, "gemma-embedding", dense, PATTERN))

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(weights["token_embd.weight"]), math.sqrt(dense.width))
        for i, spec in enumerate(layers):
            x = normed_around(ops, weights, f"blk.{i}.", x, spec, local if spec.window else everywhere, dense.eps)
        return ops.rms_norm(x, weights["output_norm.weight"], dense.eps)

    def project(ops: Ops, x: Array) -> Array:
        for name in ("dense_2", "dense_3"):
            if f"{name}.weight" in weights:
                x = ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
        return x

    family = Family("gemma-embedding", dense.vocab_size, dense.context_length, layers, forward)
    has_dense = any(name in weights for name in after)
    return replace(family, embedding=Embedding(only=True, both_ways=True, project=project if has_dense else None))
