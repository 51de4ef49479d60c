"""Gated DeltaNet (Yang, Kautz and Hatamizadeh, 2025), one row after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kinetic.backends.base import Delta
from kinetic.backends.reference.functions import (
    SMALLEST_STATE,
    exp32,
    fma32,
    sigmoid,
    softplus,
    strided_sum_of_squares,
)
from kinetic.bits import F32


def delta(q: F32, k: F32, v: F32, gate: F32, beta: F32, spec: Delta, a: F32, bias: F32, states: Sequence[F32]) -> F32:
    """See ``base.Ops.delta``. ``states`` has each row's, which is changed; rows of one sequence share theirs."""
    rows, heads, width = len(q), spec.heads, spec.width
    q, k = (l2_normed(part.reshape(rows, spec.key_heads, width), spec.eps) for part in (q, k))
    q, k = (np.tile(part, (1, heads // spec.key_heads, 1)) for part in (q * np.float32(1 / math.sqrt(width)), k))
    with np.errstate(all="ignore"):
        kept = exp32(a * softplus(gate + bias))
    learned = sigmoid(beta)
    out = np.zeros_like(v)
    for t, state in enumerate(states):
        out[t] = delta_row(q[t], k[t], v[t].reshape(heads, width), kept[t], learned[t], state).reshape(-1)
    return out


def l2_normed(x: F32, eps: float) -> F32:
    """Over the last axis: ``x * (1 / sqrt(sum(x * x) + eps))``, summed as in the RMS norm."""
    with np.errstate(all="ignore"):
        r = np.float32(1) / np.sqrt(strided_sum_of_squares(x) + np.float32(eps))
        return x * r[..., None]


def delta_row(q: F32, k: F32, v: F32, kept: F32, learned: F32, state: F32) -> F32:
    """q, k and v [H, D]; ``kept`` and ``learned`` [H] are the shares of the state and of what is new. Changes the
    state [H, D / 16, D, 16] and returns [H, D]."""
    with np.errstate(all="ignore"):
        left = state * kept[:, None, None, None]
        news = (v - dot4(left, k)) * learned[:, None]
        new = fma32(k[:, None, :, None], news.reshape(len(v), -1, 1, state.shape[3]), left)
        state[:] = np.where(np.abs(new) < SMALLEST_STATE, np.float32(0), new)
    return dot4(state, q)


def dot4(state: F32, x: F32) -> F32:
    """Sums over the key elements of state [H, D / 16, D, 16] times x [H, D]: element i goes into partial i mod 4 by
    one fma, in ascending order from +0; then (0 + 2) + (1 + 3). [H, D]."""
    partials = np.zeros((4, *np.delete(state.shape, 2)), np.float32)
    for i in range(state.shape[2]):
        partials[i % 4] = fma32(state[:, :, i], x[:, None, i, None], partials[i % 4])
    with np.errstate(all="ignore"):
        total: F32 = (partials[0] + partials[2]) + (partials[1] + partials[3])
    return total.reshape(len(state), -1)
