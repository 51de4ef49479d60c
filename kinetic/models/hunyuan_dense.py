"""Hunyuan (dense, 'hunyuan-dense'): the llama block with query and key heads normed after rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import pre_normed
from kinetic.layers.head import logits
from kinetic.models.family import Family, refuse, rope_divisors
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import biases, blocks, check, head_norms

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "hunyuan-dense")
    if gguf.get("hunyuan-dense.rope.scaling.alpha", "float", 0.0) > 0:
        # A power of float32 in a library's rounding; converters write the base that comes of it instead.
        raise refuse("UNSUPPORTED_ROPE", "'hunyuan-dense.rope.scaling.alpha' is not supported by this build")
    extra = biases(dense, ("attn_q", "attn_k", "attn_v")) | {"rope_freqs.weight": (dense.rope_width // 2,)}
    check(weights, dense, blocks(dense, ("attn_norm", "ffn_norm")) | head_norms(dense), extra)
    rope = read_rope(gguf, "hunyuan-dense", dense, interleaved=False, divisors=rope_divisors(weights))
    layers = dense.attention()

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            x = pre_normed(ops, weights, f"blk.{i}.", x, spec, rope, dense.eps, norm_eps=dense.eps, norm_last=True)
        return logits(ops, weights, x, dense.eps)

    return Family("hunyuan-dense", dense.vocab_size, dense.context_length, layers, forward)
