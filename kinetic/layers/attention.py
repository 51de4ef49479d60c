"""Grouped-query attention with rotary positions."""

from __future__ import annotations

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights


def grouped_query(
    ops: Ops,
    weights: Weights,
    prefix: str,
    x: Array,
    spec: Attention,
    rope: Rope | None,
    *,
    norm_eps: float | None = None,
    norm_last: bool = False,
) -> Array:
    """x [T, E] -> [T, E] after the output projection. Without ``rope`` nothing is rotated.

    ``prefix`` is 'blk.N.'. Biases and sinks are used where the file has them; with ``norm_eps`` queries and keys are
    RMS-normed before rotation, or after it (``norm_last``): each head, or the whole row, as wide as the weights are.
    """
    q, k, v = (project(ops, weights, f"{prefix}attn_{name}", x) for name in "qkv")

    def turned(y: Array, name: str) -> Array:
        """Normed and rotated in the order wanted."""
        y = y if norm_last or norm_eps is None else ops.rms_norm(y, weights[f"{prefix}{name}.weight"], norm_eps)
        y = y if rope is None else ops.rope(y, rope, spec.head_dim)
        return ops.rms_norm(y, weights[f"{prefix}{name}.weight"], norm_eps) if norm_last and norm_eps is not None else y

    sinks = weights.get(f"{prefix}attn_sinks.weight")
    attended = ops.attend(turned(q, "attn_q_norm"), turned(k, "attn_k_norm"), v, spec, sinks)
    return project(ops, weights, f"{prefix}attn_output", attended)


def project(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    """Linear layer ``name`` with its bias, if the file has one."""
    return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
