"""A gated short convolution, which takes the place of attention in some layers."""

from __future__ import annotations

from kinetic.backends.base import Array, Ops, State, Weights


def gated_short_conv(ops: Ops, weights: Weights, prefix: str, x: Array, state: State) -> Array:
    """``out(c(x) * conv(b(x) * u(x)))``, x [T, E] -> [T, E]; ``prefix`` is 'blk.N.shortconv.'."""
    b, c, u = (ops.linear(x, weights[f"{prefix}{name}.weight"]) for name in "bcu")
    y = ops.short_conv(ops.mul(b, u), weights[f"{prefix}conv.weight"], None, state, "")
    return ops.linear(ops.mul(c, y), weights[f"{prefix}out_proj.weight"])
