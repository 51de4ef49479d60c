"""The last norm and the product with the vocabulary."""

from __future__ import annotations

from kinetic.backends.base import Array, Ops, Weight, Weights


def output_weight(weights: Weights) -> Weight:
    """The output matrix; many files leave it out and mean the embedding table."""
    return weights.get("output.weight") or weights["token_embd.weight"]


def logits(ops: Ops, weights: Weights, x: Array, eps: float) -> Array:
    """x [T, E] -> [len(outputs), V]."""
    normed = ops.rms_norm(ops.outputs(x), weights["output_norm.weight"], eps)
    return ops.linear(normed, output_weight(weights), weights.get("output.bias"))
