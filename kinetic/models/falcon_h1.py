"""Falcon H1 (dense): attention and Mamba-2 beside one another in every layer, then a gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mamba import mixed
from kinetic.layers.mlp import gated_mlp
from kinetic.models.attention_settings import attention_scale
from kinetic.models.family import Family
from kinetic.models.mamba_settings import Mamba, read_mamba
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, read_dense
from kinetic.models.shapes import biases, blocks, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "falcon-h1"
BIASES = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down")


def build(gguf: Gguf, weights: Weights) -> Family:
    dense, mamba = read_dense(gguf, NAME), read_mamba(gguf, NAME)
    _check(weights, dense, mamba)
    rope = read_rope(gguf, NAME, dense, interleaved=False)
    layers = dense.attention(attention_scale(gguf, NAME, dense))
    mixers = [mamba.mixer(weights, i) for i in range(dense.layers)]
    parts = dict(weights)
    for i in range(dense.layers):
        parts |= mamba.parts(weights, i)

    def forward(ops: Ops) -> Array:
        x = ops.embed(parts["token_embd.weight"])
        for i, (spec, mixer) in enumerate(zip(layers, mixers, strict=True)):
            p = f"blk.{i}."
            normed = ops.rms_norm(x, parts[f"{p}attn_norm.weight"], dense.eps)
            y = grouped_query(ops, parts, p, normed, spec, rope)
            x = ops.add(x, ops.add(y, mixed(ops, parts, p, normed, mixer, dense.eps)))
            normed = ops.rms_norm(x, parts[f"{p}ffn_norm"], dense.eps)
            x = ops.add(x, gated_mlp(ops, parts, p, normed, "silu"))
        return logits(ops, parts, x, dense.eps)

    states = tuple(state for mixer in mixers for state in (mixer.conv, mixer.memory))
    return Family(NAME, dense.vocab_size, dense.context_length, layers, forward, states)


def _check(weights: Weights, d: Dense, mamba: Mamba) -> None:
    needed = blocks(d, ("attn_norm",))
    needed |= {f"blk.{i}.ffn_norm": (d.width,) for i in range(d.layers)}  # its name has no ending
    extra = biases(d, BIASES)
    for i in range(d.layers):
        own, optional = mamba.shapes(weights, i, d.width, norm=False)
        needed |= own
        extra |= optional
    check(weights, d, needed, extra)
