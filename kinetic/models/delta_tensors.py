"""Tensors of transformers in which most layers are gated DeltaNets: which must be there, and their parts."""

from __future__ import annotations

import math
from collections.abc import Callable

from kinetic.backends.base import Weight, Weights
from kinetic.formats import by_type
from kinetic.layers.fused import columns, interleaved, split
from kinetic.models.delta_settings import Hybrid
from kinetic.models.family import expect_no_others, expect_shapes, optional, refuse

Shapes = dict[str, tuple[int, ...]]

SCALED = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out")
"""Products of a layer that a file may scale: those beside its feed-forward block."""

HEADS = ("nextn.embed_tokens", "nextn.shared_head_head")
"""Tables of the layer that predicts one token more; without them it uses the model's."""


def layer_shapes(h: Hybrid, i: int) -> Shapes:
    """Norms and the tensors of attention, or of the recurrence, of layer i as the file has them."""
    d, s, p = h.dense, h.sizes, f"blk.{i}."
    e, values, channels = d.width, s.heads * s.width, sum(s.rows.values())  # exact: integers
    out: Shapes = {f"{p}attn_norm.weight": (e,), f"{p}post_attention_norm.weight": (e,)}
    if i < d.layers and h.is_recurrent[i]:
        out |= {f"{p}attn_qkv.weight": (channels, e), f"{p}attn_gate.weight": (values, e)}
        out |= {f"{p}ssm_conv1d.weight": (channels, s.taps), f"{p}ssm_norm.weight": (s.width,)}
        out |= {f"{p}ssm_{name}.weight": (s.heads, e) for name in ("alpha", "beta")}
        return out | {f"{p}ssm_a": (s.heads,), f"{p}ssm_dt.bias": (s.heads,), f"{p}ssm_out.weight": (e, values)}
    q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim
    out |= {f"{p}attn_q.weight": (2 * q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
    out |= {f"{p}attn_{name}_norm.weight": (d.head_dim,) for name in "qk"}
    return out | {f"{p}attn_output.weight": (e, q)}


def nextn_shapes(h: Hybrid) -> tuple[Shapes, Shapes]:
    """Beside attention and feed-forward: what the layer that predicts must have, and what it may have."""
    e, v, p = h.dense.width, h.dense.vocab_size, f"{h.nextn}nextn."
    needed = {f"{p}eh_proj.weight": (e, 2 * e), f"{p}enorm.weight": (e,), f"{p}hnorm.weight": (e,)}
    tables = {f"{h.nextn}{name}.weight": (v, e) for name in HEADS}
    return needed, tables | {f"{p}shared_head_norm.weight": (e,)}


def check(
    weights: Weights, h: Hybrid, feed_forward: Callable[[str], Shapes], scaled: tuple[str, ...]
) -> dict[str, Weight]:
    """Every tensor of the model must be there, and no other: all weights, under the names they would have apart.

    ``feed_forward`` has the shapes of that block of a layer by the prefix of its names; ``scaled`` names those of its
    products that may have a factor, as all others have.
    """
    d = h.dense
    needed: Shapes = {"token_embd.weight": (d.vocab_size, d.width), "output_norm.weight": (d.width,)}
    allowed: Shapes = {"output.weight": (d.vocab_size, d.width)}
    for i in range(d.layers + h.has_nextn):
        needed |= layer_shapes(h, i) | feed_forward(f"blk.{i}.")
    if h.has_nextn:
        more, tables = nextn_shapes(h)
        needed, allowed = needed | more, allowed | tables
    factors = optional(weights, _factors(h, scaled))
    present = needed | optional(weights, allowed) | factors
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
    for name in factors:
        value = float(by_type(weights[name].ggml_type, name).decode(weights[name].data).reshape(-1)[0])
        if not math.isfinite(value):
            raise refuse("NON_FINITE_SCALE", f"tensor '{name}' is {value}; a product can't be scaled by that")
    return _parts(weights, h)


def _factors(h: Hybrid, feed_forward: tuple[str, ...]) -> Shapes:
    """Numbers that whole products are multiplied by."""
    names = [f"blk.{i}.{name}" for i in range(h.dense.layers + h.has_nextn) for name in (*SCALED, *feed_forward)]
    names += [f"{h.nextn}nextn.{name}" for name in ("eh_proj", "shared_head_head")]
    return {f"{name}.scale": (1,) for name in ["output", *names]}


def _parts(weights: Weights, h: Hybrid) -> dict[str, Weight]:
    out = dict(weights)
    d, rows = h.dense, h.sizes.rows
    for i in range(d.layers + h.has_nextn):
        p = f"blk.{i}."
        if i < d.layers and h.is_recurrent[i]:
            for fused, part in (("attn_qkv", "attn"), ("ssm_conv1d", "ssm_conv1d")):
                apart = {f"{p}{part}_{name}.weight": n for name, n in rows.items()}
                out |= split(weights, f"{p}{fused}.weight", apart)
            fused, names = f"{p}attn_qkv.scale", [f"{p}attn_{name}.scale" for name in rows]
        else:
            names = [f"{p}attn_q.weight", f"{p}attn_q_gate.weight"]
            out |= interleaved(weights[f"{p}attn_q.weight"], names, d.heads)
            fused, names = f"{p}attn_q.scale", [f"{p}attn_q_gate.scale"]
        if fused in weights:
            out |= dict.fromkeys(names, weights[fused])
    if h.has_nextn:
        name = f"{h.nextn}nextn.eh_proj"
        out |= columns(weights[f"{name}.weight"], [f"{name}_e.weight", f"{name}_h.weight"])
        if f"{name}.scale" in weights:
            out |= dict.fromkeys((f"{name}_e.scale", f"{name}_h.scale"), weights[f"{name}.scale"])
    return out
