"""Mixtures of experts: which experts a row gets, and the sum of what they make of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Experts, Routing, Weight
from kinetic.backends.reference.functions import ACTIVATIONS, SMALLEST_SUM, sigmoid, softmax
from kinetic.backends.reference.linear import linear
from kinetic.bits import F32

GATINGS = {"softmax": softmax, "sigmoid": sigmoid}


def route(logits: F32, routing: Routing, factors: F32 | None = None) -> F32:
    """See ``base.Ops.route``. Experts by (value descending, number ascending); NaN counts as -inf there."""
    values = GATINGS[routing.gating](logits)
    keys = np.where(np.isnan(values), np.float32(-np.inf), values)
    chosen = np.argsort(-keys, axis=-1, kind="stable")[:, : routing.used]
    weights = np.take_along_axis(values, chosen, axis=-1)
    with np.errstate(all="ignore"):
        if routing.normalised:
            total = np.zeros(len(logits), np.float32)
            for rank in range(routing.used):
                total += weights[:, rank]
            weights /= np.where(total < SMALLEST_SUM, SMALLEST_SUM, total)[:, None]
        weights *= np.float32(routing.scale)
        if factors is not None:
            weights *= factors[chosen]
    return np.concatenate([chosen.astype(np.float32), weights], axis=1)


def mixture(x: F32, routes: F32, experts: Experts) -> F32:
    """See ``base.Ops.experts``: ``w0 * y0``, to which ``w1 * y1`` is added, and so on, in the order of ``routes``."""
    used = routes.shape[1] // 2
    chosen, weights = routes[:, :used].astype(np.int64), routes[:, used:]
    made = np.zeros((len(x), used, experts.down.shape[1]), np.float32)
    for number in np.unique(chosen):
        rows, ranks = np.nonzero(chosen == number)
        made[rows, ranks] = _feed_forward(x[rows], experts, number)
    with np.errstate(all="ignore"):
        total: F32 = made[:, 0] * weights[:, :1]
        for rank in range(1, used):
            total += made[:, rank] * weights[:, rank : rank + 1]
    return total


def _feed_forward(x: F32, experts: Experts, number: np.int64) -> F32:
    gate, up = (linear(x, _matrix(weight, number)) for weight in (experts.gate, experts.up))
    with np.errstate(all="ignore"):
        hidden = ACTIVATIONS[experts.activation](gate) * up
    return linear(hidden, _matrix(experts.down, number))


def _matrix(weight: Weight, number: np.int64) -> Weight:
    """The matrix [N, K] of one expert."""
    rows: NDArray[np.uint8] = weight.data.reshape(*weight.shape[:2], weight.data.shape[-1])[number]
    return weight._replace(shape=weight.shape[1:], data=rows)
