"""The mixer of Mamba-2: a short convolution, a selective scan, and a gate (Dao and Gu, 2024)."""

from __future__ import annotations

from typing import NamedTuple

from kinetic.backends.base import Array, Ops, Scan, State, Weights


class Mixer(NamedTuple):
    """The mixer of one layer. ``conv`` and ``memory`` are what it carries from token to token."""

    scan: Scan
    conv: State
    memory: State


def mixed(ops: Ops, weights: Weights, prefix: str, x: Array, mixer: Mixer, eps: float) -> Array:
    """x [T, E] -> [T, E]. ``prefix`` is 'blk.N.'; the rows of ``ssm_in`` are those of ``ssm_in_z`` (the gate),
    ``ssm_in_x`` (what the convolution reads: x, B and C) and ``ssm_in_dt``. Without ``ssm_norm`` nothing is normed."""
    z, inner, dt = (ops.linear(x, weights[f"{prefix}ssm_in_{name}.weight"]) for name in ("z", "x", "dt"))
    taps, bias = weights[f"{prefix}ssm_conv1d.weight"], weights.get(f"{prefix}ssm_conv1d.bias")
    inner = ops.short_conv(inner, taps, bias, mixer.conv, "silu")
    y = ops.gated(z, ops.scan(inner, dt, mixer.scan, mixer.memory), "silu")
    norm = weights.get(f"{prefix}ssm_norm.weight")
    y = y if norm is None else ops.rms_norm(y, norm, eps)
    return ops.linear(y, weights[f"{prefix}ssm_out.weight"])
