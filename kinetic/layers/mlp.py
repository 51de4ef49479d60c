"""Gated feed-forward block."""

from __future__ import annotations

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.attention import project


def gated_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, activation: str) -> Array:
    """``down(act(gate(x)) * up(x))``, x [T, E] -> [T, E]."""
    gate = project(ops, weights, f"{prefix}ffn_gate", x)
    up = project(ops, weights, f"{prefix}ffn_up", x)
    return project(ops, weights, f"{prefix}ffn_down", ops.gated(gate, up, activation))
