"""Multi-head latent attention: keys and values of all heads are made from one short row, the latent, for each token.

Keys and queries end with elements that are rotated; those of the key are the same for every head. A file has the
matrices that make heads of the latent either as one (``attn_kv_b``), or as ``attn_k_b``, transposed, and ``attn_v_b``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.layers.attention import project


class Latent(NamedTuple):
    """Widths of a head: elements of a key that are not ``rotated``, those that are, and elements of a value; the
    ``rank`` is the width of the latent. ``absorbed``: the file has ``attn_k_b`` and ``attn_v_b``."""

    heads: int
    plain: int
    rotated: int
    value: int
    rank: int
    absorbed: bool

    def attention(self, layer: int, scale: float) -> Attention:
        """What is kept of a layer: absorbed, one key head that is the latent and the rotated elements, else all."""
        if self.absorbed:
            return Attention(layer, self.heads, 1, self.rank + self.rotated, scale, value_dim=self.rank)
        return Attention(layer, self.heads, self.heads, self.plain + self.rotated, scale, value_dim=self.value)


def latent_attention(
    ops: Ops, weights: Weights, prefix: str, x: Array, spec: Attention, rope: Rope, s: Latent, eps: float
) -> Array:
    """x [T, E] -> [T, E] after the output projection. ``weights`` has ``attn_kv_a_mqa`` as its two parts, called
    ``attn_latent`` and ``attn_k_rope``; queries come from a short row of their own where there is ``attn_q_a``."""
    short = x
    if f"{prefix}attn_q_a.weight" in weights:
        short = ops.rms_norm(
            project(ops, weights, f"{prefix}attn_q_a", x), weights[f"{prefix}attn_q_a_norm.weight"], eps
        )
    q = project(ops, weights, f"{prefix}attn_q" if short is x else f"{prefix}attn_q_b", short)
    q = ops.rope(q, replace(rope, first=s.plain), s.plain + s.rotated)
    latent = project(ops, weights, f"{prefix}attn_latent", x)
    latent = ops.rms_norm(latent, weights[f"{prefix}attn_kv_a_norm.weight"], eps)
    turned = ops.rope(project(ops, weights, f"{prefix}attn_k_rope", x), rope, s.rotated)
    attend = _absorbed if s.absorbed else _apart
    return project(ops, weights, f"{prefix}attn_output", attend(ops, weights, prefix, q, latent, turned, spec, s))


def _apart(
    ops: Ops, weights: Weights, prefix: str, q: Array, latent: Array, turned: Array, spec: Attention, s: Latent
) -> Array:
    """Every head has keys and values of its own: [T, H * value]."""
    both = project(ops, weights, f"{prefix}attn_kv_b", latent)
    keys = ops.join(ops.cut(both, s.heads, 0, s.plain), turned, s.heads, shared=True)
    return ops.attend(q, keys, ops.cut(both, s.heads, s.plain, s.value), spec)


def _absorbed(
    ops: Ops, weights: Weights, prefix: str, q: Array, latent: Array, turned: Array, spec: Attention, s: Latent
) -> Array:
    """All heads read the latent as one key and value head: queries are brought to it, and what comes out of it is made
    a value afterwards: [T, H * value]."""
    plain = ops.linear_heads(ops.cut(q, s.heads, 0, s.plain), weights[f"{prefix}attn_k_b.weight"])
    queries = ops.join(plain, ops.cut(q, s.heads, s.plain, s.rotated), s.heads)
    attended = ops.attend(queries, ops.join(latent, turned, 1), latent, spec)
    return ops.linear_heads(attended, weights[f"{prefix}attn_v_b.weight"])
