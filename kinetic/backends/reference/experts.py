"""Mixtures of experts: which experts a row gets, and the sum of what they make of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Experts, Routing, Weight
from kinetic.backends.reference.functions import GATES, SMALLEST_SUM, sigmoid, softmax
from kinetic.backends.reference.linear import linear
from kinetic.bits import F32
from kinetic.formats import by_type

GATINGS: dict[str, Callable[[F32], F32]] = {"softmax": softmax, "sigmoid": sigmoid, "softmax_chosen": np.copy}


def route(logits: F32, routing: Routing, bias: F32 | None = None) -> F32:
    """See ``base.Ops.route``. Experts by (value and bias descending, number ascending); NaN counts as -inf there."""
    values = GATINGS[routing.gating](logits)
    with np.errstate(all="ignore"):
        keys = _as_keys(values if bias is None else values + bias)
    if routing.groups > 1:
        keys = _of_best_groups(keys, routing)
    chosen = _best(keys, routing.used)
    weights = np.take_along_axis(values, chosen, axis=-1)
    if routing.gating == "softmax_chosen":
        weights = softmax(weights)
    with np.errstate(all="ignore"):
        if routing.normalised:
            total = np.zeros(len(logits), np.float32)
            for rank in range(routing.used):
                total += weights[:, rank]
            weights /= np.where(total < SMALLEST_SUM, SMALLEST_SUM, total)[:, None]
        weights *= np.float32(routing.scale)
    return np.concatenate([chosen.astype(np.float32), weights], axis=1)


def _as_keys(values: F32) -> F32:
    return np.where(np.isnan(values), np.float32(-np.inf), values)


def _best(keys: F32, count: int) -> NDArray[np.int64]:
    """Numbers of the ``count`` largest over the last axis, the largest first, of equal ones the lowest."""
    return np.argsort(-keys, axis=-1, kind="stable")[..., :count]


def _of_best_groups(keys: F32, routing: Routing) -> F32:
    """``keys`` [T, X], and -inf for experts of other groups than the best. A group has the sum of its two best."""
    groups = keys.reshape(len(keys), routing.groups, keys.shape[1] // routing.groups)
    two = np.take_along_axis(groups, _best(groups, 2), axis=-1)
    with np.errstate(all="ignore"):
        scores = _as_keys(two[..., 0] + two[..., 1])
    out = np.full_like(groups, -np.inf)
    best = _best(scores, routing.used_groups)[..., None]
    np.put_along_axis(out, best, np.take_along_axis(groups, best, axis=1), axis=1)
    return out.reshape(keys.shape)


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


def _feed_forward(x: F32, experts: Experts, number: int) -> F32:
    gate = _plus(linear(x, matrix(experts.gate, number)), experts.gate_bias, number)
    up = _plus(linear(x, matrix(experts.up, number)), experts.up_bias, number)
    with np.errstate(all="ignore"):
        hidden = GATES[experts.activation](gate, up)
    return _plus(linear(hidden, matrix(experts.down, number)), experts.down_bias, number)


def _plus(y: F32, bias: Weight | None, number: int) -> F32:
    """``y`` and the bias of one expert, if there is one."""
    return y if bias is None else y + _elements(bias).reshape(bias.shape)[number]


def _elements(weight: Weight) -> F32:
    """All elements of a bias as float32 in a row."""
    return by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)


def matrix(weight: Weight, number: int) -> Weight:
    """The matrix [N, K] of one expert, or of one head."""
    rows: NDArray[np.uint8] = weight.data.reshape(weight.shape[0], weight.shape[1], -1)[number]
    return weight._replace(shape=weight.shape[1:], data=rows)
