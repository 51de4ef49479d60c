"""Recurrences, a row of one sequence at a time: each reads the state that the row before left, and leaves the next."""

from __future__ import annotations

import numpy as np

from kinetic.backends.reference.functions import ACTIVATIONS, fma32
from kinetic.bits import F32


def short_conv_row(x: F32, taps: F32, bias: F32 | None, state: F32, activation: str) -> F32:
    """See ``base.Ops.short_conv``: x [C], taps [C, K], bias [C], state [K - 1, C], which is moved on by x: [C].

    ``y = fma(row, tap, y)`` from +0 over the K - 1 rows of the state and x, oldest first; then the bias is added.
    """
    rows = np.concatenate([state, x[None]])
    y = np.zeros_like(x)
    for row, tap in zip(rows, taps.T, strict=True):
        y = fma32(row, tap, y)
    state[:] = rows[1:]
    if bias is not None:
        with np.errstate(all="ignore"):
            y = y + bias
    return ACTIVATIONS[activation](y) if activation else y
