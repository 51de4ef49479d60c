"""LFM 2 (dense): a gated short convolution in most layers, attention in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp
from kinetic.models.family import Family
from kinetic.models.shapes import Shapes, check, in_layers
from kinetic.models.short_conv import mix_tokens, parts, read_convolved, stored_shapes

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    model = read_convolved(gguf, "lfm2")
    d = model.dense
    feed: Shapes = {f"ffn_{name}.weight": (d.ffn, d.width) for name in ("gate", "up")}
    check(weights, d, stored_shapes(model) | in_layers(d, feed | {"ffn_down.weight": (d.width, d.ffn)}))
    named = parts(weights, model)

    def forward(ops: Ops) -> Array:
        x = ops.embed(named["token_embd.weight"])
        for i in range(d.layers):
            x = mix_tokens(ops, named, model, x, i)
            normed = ops.rms_norm(x, named[f"blk.{i}.ffn_norm.weight"], d.eps)
            x = ops.add(x, gated_mlp(ops, named, f"blk.{i}.", normed, "silu"))
        return logits(ops, named, x, d.eps)

    return Family("lfm2", d.vocab_size, d.context_length, model.attention, forward, model.states)
