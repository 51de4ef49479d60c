"""Grouped-query attention with rotary positions."""

from __future__ import annotations

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights


def grouped_query(
    ops: Ops, weights: Weights, prefix: str, x: Array, spec: Attention, rope: Rope, *, norm_eps: float | None = None
) -> Array:
    """x [T, E], already normalised -> [T, E] after the output projection.

    ``prefix`` is 'blk.N.'. Biases are used where the file has them; with
    ``norm_eps`` the query and key heads are RMS-normed before rotation.
    """
    q, k, v = (project(ops, weights, f"{prefix}attn_{name}", x) for name in "qkv")
    if norm_eps is not None:
        q = ops.rms_norm(q, weights[f"{prefix}attn_q_norm.weight"], norm_eps)
        k = ops.rms_norm(k, weights[f"{prefix}attn_k_norm.weight"], norm_eps)
    q, k = ops.rope(q, rope, spec.head_dim), ops.rope(k, rope, spec.head_dim)
    return project(ops, weights, f"{prefix}attn_output", ops.attend(q, k, v, spec))


def project(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    """Linear layer ``name`` with its bias, if the file has one."""
    return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
