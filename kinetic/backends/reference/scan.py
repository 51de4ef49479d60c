"""The selective scan of Mamba-2 (Dao and Gu, 2024), one row after the other."""

from __future__ import annotations

import numpy as np

from kinetic.backends.reference.functions import SMALLEST_STATE, exp32, fma32, softplus
from kinetic.bits import F32

PARTIALS = 4
"""Sums that a product with a state is made of."""

BLOCK = 16
"""Elements of a head that lie side by side in a state."""


def scan_row(x: F32, b: F32, c: F32, dt: F32, state: F32, a: F32, d: F32) -> F32:
    """One row: x [H, D], b and c [G, N], dt [H] with its bias, a and d [H]. Returns [H, D].

    ``state`` [H, D / 16 rounded up, N, 16] is moved on. Heads in their order share the groups, H / G of them each.
    """
    heads, width = x.shape
    b, c = (np.repeat(part, heads // len(part), axis=0)[:, None, :] for part in (b, c))  # [H, 1, N]
    old = state.swapaxes(2, 3).reshape(heads, -1, state.shape[2])[:, :width]  # [H, D, N]
    with np.errstate(all="ignore"):
        step = softplus(dt)[:, None]  # [H, 1]
        decay = exp32(step * a[:, None])
        new = fma32(old, decay[:, :, None], (x * step)[:, :, None] * b)
        new = np.where(np.abs(new) < SMALLEST_STATE, np.float32(0), new)
        y = fma32(x, d[:, None], dot4(new, c))
    padded = np.zeros((heads, state.shape[1] * BLOCK, state.shape[2]), np.float32)
    padded[:, :width] = new
    state[:] = padded.reshape(heads, state.shape[1], BLOCK, -1).swapaxes(2, 3)
    return y


def dot4(h: F32, c: F32) -> F32:
    """Over the last axis: element i goes into partial i mod 4 by one fma in ascending order; then (0 + 2) + (1 + 3)."""
    partials = np.zeros((PARTIALS, *h.shape[:-1]), np.float32)
    for i in range(h.shape[-1]):
        partials[i % PARTIALS] = fma32(h[..., i], c[..., i], partials[i % PARTIALS])
    return (partials[0] + partials[2]) + (partials[1] + partials[3])
