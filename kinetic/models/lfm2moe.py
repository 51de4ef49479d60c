"""LFM 2 with experts: the layers of LFM 2, with mixtures behind the first few feed-forward blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Routing, Weights
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.experts import Mixture, feed_forward_shapes, read_mixture
from kinetic.models.family import Family, refuse
from kinetic.models.settings import Dense, uniform
from kinetic.models.shapes import Shapes, check
from kinetic.models.short_conv import mix_tokens, parts, read_convolved, stored_shapes

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "lfm2moe"

GATINGS = {1: "softmax", 2: "sigmoid"}
"""Numbers of ``expert_gating_func``."""


def build(gguf: Gguf, weights: Weights) -> Family:
    model = read_convolved(gguf, NAME)
    d, mixture, leading = model.dense, *_mixtures(gguf, model.dense)
    check(weights, d, stored_shapes(model) | _feed_forward(d, mixture, leading))
    named = parts(weights, model)

    def forward(ops: Ops) -> Array:
        x = ops.embed(named["token_embd.weight"])
        for i in range(d.layers):
            p = f"blk.{i}."
            x = mix_tokens(ops, named, model, x, i)
            n = ops.rms_norm(x, named[f"{p}ffn_norm.weight"], d.eps)
            is_dense = i < leading
            y = (
                gated_mlp(ops, named, p, n, "silu")
                if is_dense
                else mixture_mlp(ops, named, p, n, mixture.routing, "silu")
            )
            x = ops.add(x, y)
        return logits(ops, named, x, d.eps)

    return Family(NAME, d.vocab_size, d.context_length, model.attention, forward, model.states)


def _mixtures(gguf: Gguf, d: Dense) -> tuple[Mixture, int]:
    """What a mixture is like, and in how many layers at the start there is none."""
    leading = gguf.get(f"{NAME}.leading_dense_block_count", "int", 0)
    if not 0 <= leading <= d.layers:
        raise refuse("BAD_SETTING", f"'{NAME}.leading_dense_block_count' is {leading} of {d.layers} layers")
    gating = gguf.get(f"{NAME}.expert_gating_func", "int")
    if gating not in GATINGS:
        raise refuse("UNSUPPORTED_LAYERS", f"'{NAME}.expert_gating_func' {gating} is not supported by this build")
    scale = gguf.get(f"{NAME}.expert_weights_scale", "float", 1.0)
    if scale not in (0.0, 1.0):
        raise refuse("UNSUPPORTED_LAYERS", f"'{NAME}.expert_weights_scale' {scale} is not supported by this build")
    mixture = read_mixture(gguf, NAME, uniform(gguf, f"{NAME}.expert_feed_forward_length", d.layers, 0))
    return replace(mixture, routing=Routing(mixture.routing.used, GATINGS[gating])), leading


def _feed_forward(d: Dense, mixture: Mixture, leading: int) -> Shapes:
    out: Shapes = {}
    for i in range(d.layers):
        p = f"blk.{i}."
        if i < leading:
            out |= {f"{p}ffn_{name}.weight": (d.ffn, d.width) for name in ("gate", "up")}
            out[f"{p}ffn_down.weight"] = (d.width, d.ffn)
        else:
            out |= feed_forward_shapes(p, d.width, mixture) | {f"{p}exp_probs_b.bias": (mixture.count,)}
    return out
