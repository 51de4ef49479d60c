"""OLMo 2, and OLMo 3 with windows: norms after both halves and none before, queries and keys normed row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import post_normed
from kinetic.layers.head import logits
from kinetic.models.attention_settings import sliding_windows
from kinetic.models.family import Family
from kinetic.models.rope_settings import plain_rope, read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, blocks, check, row_norms

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

PATTERN = 4
"""Layer i sees all keys when i + 1 is a multiple of this, if the file says nothing else."""


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "olmo2")
    needed = blocks(dense, ("post_attention_norm", "post_ffw_norm")) | row_norms(dense)
    check(weights, dense, needed, biases(dense, ("attn_q", "attn_k", "attn_v")))
    layers = dense.attention(windows=sliding_windows(gguf, "olmo2", dense, PATTERN))
    rope = read_rope(gguf, "olmo2", dense, interleaved=False)
    local = plain_rope(dense, interleaved=False)  # windows are short: what they see is never stretched

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            x = post_normed(ops, weights, f"blk.{i}.", x, spec, local if spec.window else rope, dense.eps)
        return logits(ops, weights, x, dense.eps)

    return Family("olmo2", dense.vocab_size, dense.context_length, layers, forward)
