"""Phi 3 and 4 (dense): the llama block; one tensor for queries, keys and values, and one for gate and up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weight, Weights
from kinetic.layers.block import pre_normed
from kinetic.layers.fused import split
from kinetic.layers.head import logits
from kinetic.models.context_settings import original_context, trained_context
from kinetic.models.family import Family, refuse, rope_divisors
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, read_dense
from kinetic.models.shapes import Shapes, blocks, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "phi3")
    if gguf.get("phi3.expert_count", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "this file is a mixture of experts, which this build cannot run")
    extra: Shapes = dict.fromkeys((LONG, SHORT), (dense.rope_width // 2,))
    check(weights, dense, _stored(weights, dense), extra)
    parts = _parts(weights, dense)
    # Of the file, not of a run: a receipt's rerun must find the same factors.
    is_long = trained_context(gguf, "phi3") > original_context(gguf, "phi3")
    divisors = rope_divisors(weights, LONG if is_long else SHORT)
    rope = read_rope(gguf, "phi3", dense, interleaved=False, divisors=divisors, longrope=True)
    layers = dense.attention()

    def forward(ops: Ops) -> Array:
        x = ops.embed(parts["token_embd.weight"])
        for i, spec in enumerate(layers):
            x = pre_normed(ops, parts, f"blk.{i}.", x, spec, rope, dense.eps)
        return logits(ops, parts, x, dense.eps)

    return Family("phi3", dense.vocab_size, dense.context_length, layers, forward)


def _rows(d: Dense) -> tuple[dict[str, int], dict[str, int]]:
    """Rows of the parts of 'attn_qkv' and of 'ffn_up', from the top."""
    kv = d.kv_heads * d.head_dim
    return {"attn_q": d.heads * d.head_dim, "attn_k": kv, "attn_v": kv}, {"ffn_gate": d.ffn, "ffn_up": d.ffn}


def _stored(weights: Weights, d: Dense) -> Shapes:
    """Shapes as the file has them: gate and up are always one tensor, the other three may be."""
    shapes = blocks(d, ("attn_norm", "ffn_norm"))
    attention, feed = _rows(d)
    for i in range(d.layers):
        p = f"blk.{i}."
        del shapes[f"{p}ffn_gate.weight"]
        shapes[f"{p}ffn_up.weight"] = (sum(feed.values()), d.width)  # exact: integers
        if f"{p}attn_qkv.weight" in weights:
            for name in attention:
                del shapes[f"{p}{name}.weight"]
            shapes[f"{p}attn_qkv.weight"] = (sum(attention.values()), d.width)  # exact: integers
    return shapes


def _parts(weights: Weights, d: Dense) -> dict[str, Weight]:
    """All weights, under the names they would have apart."""
    out = dict(weights)
    for i in range(d.layers):
        p = f"blk.{i}."
        for fused, rows in zip((f"{p}attn_qkv.weight", f"{p}ffn_up.weight"), _rows(d), strict=True):
            if fused in weights:
                out |= split(weights, fused, {f"{p}{name}.weight": count for name, count in rows.items()})
    return out
