"""DFlash: a few layers that fill in a whole block of tokens at once, behind keys made of what another model saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.mlp import gated_mlp
from kinetic.models.drafters import read_drafter, refuse_settings, shared, target_layers
from kinetic.models.family import HiddenDrafter, expect_no_others, expect_shapes, optional, refuse
from kinetic.models.rope_settings import read_rope

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "dflash"

MOST_TOKENS = 64
"""Of a block."""

PLAIN = {
    "embedding_scale": 1.0,
    "attention.scale": 0.0,
    "attention.value_scale": 1.0,
    "attention.causal": False,
    "attention.sliding_window": 0,
    "hidden_act": "silu",
    "hyper_connection_count": 0,
}
"""Settings of relatives of this model, and what they are in it."""


def build(gguf: Gguf, weights: Weights, target: Weights) -> HiddenDrafter:
    d = read_drafter(gguf, NAME, weights, target)
    refuse_settings(gguf, NAME, PLAIN)
    block, mask = gguf.get(f"{NAME}.block_size", "int"), gguf.get("tokenizer.ggml.mask_token_id", "int")
    if not (2 <= block <= MOST_TOKENS and 0 <= mask < d.vocab_size):
        raise refuse("BAD_SETTING", f"blocks of {block} tokens, filled up with token {mask}, can't be computed")
    layers = target_layers(gguf, NAME)
    e, q, kv = d.width, d.heads * d.head_dim, d.kv_heads * d.head_dim
    seen = len(layers) * target["token_embd.weight"].shape[1]
    needed: dict[str, tuple[int, ...]] = {"fc.weight": (e, seen), "output_norm.weight": (e,)}
    needed |= {"enc.output_norm.weight": (e,)}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,), f"{p}attn_output.weight": (e, q)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_{name}_norm.weight": (d.head_dim,) for name in "qk"}
        needed |= {f"{p}ffn_{name}.weight": (d.ffn, e) for name in ("gate", "up")} | {f"{p}ffn_down.weight": (e, d.ffn)}
    tables = ("token_embd.weight", "output.weight")
    present = needed | optional(weights, dict.fromkeys(tables, (d.vocab_size, e)))
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
    table, output = (shared(weights, target, name) for name in tables)
    if output.shape != (d.vocab_size, e):
        raise refuse("OTHER_WIDTH", f"the output layer {list(output.shape)} does not fit a drafter of width {e}")
    rope = read_rope(gguf, NAME, d, interleaved=False)
    specs = tuple(Attention(i, d.heads, d.kv_heads, d.head_dim, d.scale, causal=False) for i in range(d.layers))

    def forward(ops: Ops) -> Array:
        """What attention reads of a row of what was seen is that, encoded; of one of a block its own normed row. Each
        adds zeros for the other. Rows of what was seen leave nothing behind but keys and values."""
        given = ops.given(seen + e)
        encoded = ops.linear(ops.cut(given, 1, 0, seen), weights["fc.weight"])
        encoded = ops.rms_norm(encoded, weights["enc.output_norm.weight"], d.eps)
        is_block = ops.cut(given, 1, seen, e)
        x = ops.embed(table)
        for i, spec in enumerate(specs):
            p = f"blk.{i}."
            normed = ops.mul(ops.rms_norm(x, weights[f"{p}attn_norm.weight"], d.eps), is_block)
            x = ops.add(x, grouped_query(ops, weights, p, ops.add(encoded, normed), spec, rope, norm_eps=d.eps))
            x = ops.add(x, gated_mlp(ops, weights, p, ops.rms_norm(x, weights[f"{p}ffn_norm.weight"], d.eps), "silu"))
        return ops.linear(ops.rms_norm(ops.outputs(x), weights["output_norm.weight"], d.eps), output)

    return HiddenDrafter(NAME, forward, specs, seen + e, d.context_length, layers, block=block, mask=mask)
