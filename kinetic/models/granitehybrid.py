"""Granite 4 hybrids: layers of Mamba-2 with some of attention, each with a feed-forward block or a mixture."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.bits import round_f32
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mamba import Mixer, mixed
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.attention_settings import attention_scale
from kinetic.models.experts import Mixture, feed_forward_shapes, read_mixture
from kinetic.models.family import Family, refuse, rope_divisors
from kinetic.models.mamba_settings import Mamba, read_mamba
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, per_layer, read_dense
from kinetic.models.shapes import Shapes, check, in_layers

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "granitehybrid"


class Scales(NamedTuple):
    """Factors of the embedding, of what is added to the residual stream, and of logits."""

    embedding: float
    residual: float
    logits: float


def build(gguf: Gguf, weights: Weights) -> Family:
    dense, mamba = read_dense(gguf, NAME, gaps=True), read_mamba(gguf, NAME)
    # A layer without key/value heads is one of Mamba-2.
    key_heads = per_layer(gguf, f"{NAME}.attention.head_count_kv", dense.layers, dense.heads)
    mixture = None
    if gguf.get(f"{NAME}.expert_count", "int", 0):
        mixture = read_mixture(gguf, NAME, dense.ffn, shared=True)
    _check(weights, dense, mamba, mixture, key_heads)
    rope: Rope | None = read_rope(gguf, NAME, dense, interleaved=True, divisors=rope_divisors(weights))
    if not gguf.get(f"{NAME}.rope.scaling.finetuned", "bool", True):
        rope = None  # Granite's switch for models without positions
    scale, scales = attention_scale(gguf, NAME, dense), _scales(gguf)
    layers = {i: replace(dense.attention(scale)[i], kv_heads=count) for i, count in enumerate(key_heads) if count}
    mixers = {i: mamba.mixer(weights, i) for i in range(dense.layers) if i not in layers}
    parts = dict(weights)
    for i in mixers:
        parts |= mamba.parts(weights, i)

    def forward(ops: Ops) -> Array:
        x = ops.scale(ops.embed(parts["token_embd.weight"]), scales.embedding)
        for i in range(dense.layers):
            p = f"blk.{i}."
            normed = ops.rms_norm(x, parts[f"{p}attn_norm.weight"], dense.eps)
            y = _mix(ops, parts, p, normed, layers.get(i) or mixers[i], rope, dense.eps)
            x = ops.add(x, ops.scale(y, scales.residual))
            normed = ops.rms_norm(x, parts[f"{p}ffn_norm.weight"], dense.eps)
            x = ops.add(x, ops.scale(_feed_forward(ops, parts, p, normed, mixture), scales.residual))
        return ops.scale(logits(ops, parts, x, dense.eps), scales.logits)

    states = tuple(state for mixer in mixers.values() for state in (mixer.conv, mixer.memory))
    return Family(NAME, dense.vocab_size, dense.context_length, tuple(layers.values()), forward, states)


def _mix(
    ops: Ops, weights: Weights, p: str, x: Array, layer: Attention | Mixer, rope: Rope | None, eps: float
) -> Array:
    if isinstance(layer, Attention):
        return grouped_query(ops, weights, p, x, layer, rope)
    return mixed(ops, weights, p, x, layer, eps)


def _feed_forward(ops: Ops, weights: Weights, p: str, x: Array, mixture: Mixture | None) -> Array:
    """A gated block; or a mixture, and what the block for every row makes beside it."""
    if mixture is None:
        return gated_mlp(ops, weights, p, x, "silu")
    y = mixture_mlp(ops, weights, p, x, mixture.routing, "silu")
    return ops.add(y, gated_mlp(ops, weights, p, x, "silu", "_shexp")) if mixture.shared else y


def _scales(gguf: Gguf) -> Scales:
    """As the file has them: ``logit_scale`` divides, and one that is left out, or 0, changes nothing."""
    names = ("embedding_scale", "residual_scale", "logit_scale")
    embedding, residual, divisor = (_setting(gguf, name) or 1.0 for name in names)
    return Scales(embedding, residual, float(round_f32(1.0 / divisor)))


def _setting(gguf: Gguf, name: str) -> float:
    value: float = gguf.get(f"{NAME}.{name}", "float", 0.0)
    if not (math.isfinite(value) and value >= 0):
        raise refuse("BAD_SETTING", f"'{NAME}.{name}' is {value}; it must be a positive number")
    return value


def _check(weights: Weights, d: Dense, mamba: Mamba, mixture: Mixture | None, key_heads: list[int]) -> None:
    e, q = d.width, d.heads * d.head_dim
    needed: Shapes = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    needed |= in_layers(d, {"attn_norm.weight": (e,), "ffn_norm.weight": (e,)})
    extra: Shapes = {"rope_freqs.weight": (d.rope_width // 2,)}
    for i, count in enumerate(key_heads):
        p, kv = f"blk.{i}.", count * d.head_dim
        if count == 0:
            own, optional = mamba.shapes(weights, i, e)
            needed |= own
            extra |= optional
        else:
            if d.heads % count:
                raise refuse("BAD_HEAD_COUNT", f"{d.heads} query heads cannot share {count} key/value heads")
            lengths = {"attn_q": (q, e), "attn_k": (kv, e), "attn_v": (kv, e), "attn_output": (e, q)}
            needed |= {f"{p}{name}.weight": shape for name, shape in lengths.items()}
            extra |= {f"{p}{name}.bias": shape[:1] for name, shape in lengths.items()}
        if mixture is not None:
            needed |= feed_forward_shapes(p, e, mixture)
            continue
        lengths = {"ffn_gate": (d.ffn, e), "ffn_up": (d.ffn, e), "ffn_down": (e, d.ffn)}
        needed |= {f"{p}{name}.weight": shape for name, shape in lengths.items()}
        extra |= {f"{p}{name}.bias": shape[:1] for name, shape in lengths.items()}
    check(weights, d, needed, extra)
