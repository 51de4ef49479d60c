"""SmolLM 3: the llama block, with no rotation in every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import pre_normed
from kinetic.layers.head import logits
from kinetic.models.attention_settings import attention_scale
from kinetic.models.family import Family
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, blocks, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

UNROTATED = 4
"""Layer i is not rotated when i + 1 is a multiple of this."""

BIASES = ("attn_q", "attn_k", "attn_v")


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "smollm3")
    check(weights, dense, blocks(dense, ("attn_norm", "ffn_norm")), biases(dense, BIASES))
    rope = read_rope(gguf, "smollm3", dense, interleaved=True)
    layers = dense.attention(attention_scale(gguf, "smollm3", dense))

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            turned = None if (i + 1) % UNROTATED == 0 else rope
            x = pre_normed(ops, weights, f"blk.{i}.", x, spec, turned, dense.eps)
        return logits(ops, weights, x, dense.eps)

    return Family("smollm3", dense.vocab_size, dense.context_length, layers, forward)
