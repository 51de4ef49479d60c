"""EAGLE-3: one layer that guesses from a token and from what three layers of another model saw at the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.deltanet import HIDDEN
from kinetic.layers.mlp import gated_mlp
from kinetic.models.drafters import read_drafter, shared, target_layers, token_ids
from kinetic.models.family import HiddenDrafter, expect_no_others, expect_shapes, optional, refuse, rope_divisors
from kinetic.models.rope_settings import read_rope

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "eagle3"


def build(gguf: Gguf, weights: Weights, target: Weights) -> HiddenDrafter:
    d = read_drafter(gguf, NAME, weights, target)
    if d.layers != 1:
        raise refuse("UNSUPPORTED_LAYERS", f"an EAGLE-3 drafter has one layer, and this file {d.layers}")
    layers = target_layers(gguf, NAME)
    seen = len(layers) * gguf.get(f"{NAME}.target_hidden_size", "int", target["token_embd.weight"].shape[1])
    if seen != len(layers) * target["token_embd.weight"].shape[1]:
        raise refuse("OTHER_WIDTH", f"'{NAME}.target_hidden_size' is not the width of the model it is to guess for")
    ids = token_ids(weights, d.vocab_size)
    norms_input = gguf.get(f"{NAME}.norm_before_fc", "bool", False)
    norms_residual = gguf.get(f"{NAME}.norm_before_residual", "bool", False)
    e, p, q, kv = d.width, "blk.0.", d.heads * d.head_dim, d.kv_heads * d.head_dim
    needed: dict[str, tuple[int, ...]] = {"fc.weight": (e, seen), "output_norm.weight": (e,)}
    needed |= {f"{p}attn_norm.weight": (e,), f"{p}attn_norm_2.weight": (e,), f"{p}ffn_norm.weight": (e,)}
    needed |= {f"{p}attn_q.weight": (q, 2 * e), f"{p}attn_k.weight": (kv, 2 * e), f"{p}attn_v.weight": (kv, 2 * e)}
    needed |= {f"{p}attn_output.weight": (e, q), f"{p}ffn_down.weight": (e, d.ffn)}
    needed |= {f"{p}ffn_{name}.weight": (d.ffn, e) for name in ("gate", "up")}
    needed |= {"enc.output_norm.weight": (seen,)} if norms_input else {}
    extra: dict[str, tuple[int, ...]] = {"token_embd.weight": (d.vocab_size, e)}
    extra |= {"rope_freqs.weight": (d.rope_width // 2,)}
    extra |= {"output.weight": (len(ids) or d.vocab_size, e)} | ({"d2t": (len(ids),)} if ids else {})
    present = needed | optional(weights, extra)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
    output, table = shared(weights, target, "output.weight"), shared(weights, target, "token_embd.weight")
    if output.shape != (len(ids) or d.vocab_size, e):
        raise refuse("OTHER_WIDTH", f"the output layer {list(output.shape)} does not fit a drafter of width {e}")
    rope = read_rope(gguf, NAME, d, interleaved=True, divisors=rope_divisors(weights))
    spec = Attention(0, d.heads, d.kv_heads, d.head_dim, d.scale)

    def encode(ops: Ops) -> Array:
        x = ops.given(seen)
        if norms_input:
            x = ops.rms_norm(x, weights["enc.output_norm.weight"], d.eps)
        return ops.linear(ops.outputs(x), weights["fc.weight"])

    def forward(ops: Ops) -> Array:
        token = ops.rms_norm(ops.embed(table), weights[f"{p}attn_norm.weight"], d.eps)
        x = ops.given(e)
        normed = ops.rms_norm(x, weights[f"{p}attn_norm_2.weight"], d.eps)
        attended = grouped_query(ops, weights, p, ops.join(token, normed, 1), spec, rope)
        x = ops.add(normed if norms_residual else x, attended)
        x = ops.add(x, gated_mlp(ops, weights, p, ops.rms_norm(x, weights[f"{p}ffn_norm.weight"], d.eps), "silu"))
        x = ops.outputs(ops.tap(x, HIDDEN))
        return ops.linear(ops.rms_norm(x, weights["output_norm.weight"], d.eps), output)

    return HiddenDrafter(NAME, forward, (spec,), e, d.context_length, layers, encode, ids=ids)
