"""Attention of one row over its keys, chunk by chunk, and the float16 cache that holds them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.reference.functions import EXP_ZERO_BELOW, exp32, fma32, softcap, strided_sum
from kinetic.bits import F32

NEGATIVE_INFINITY = np.float32(-np.inf)


class Partial(NamedTuple):
    """One chunk's softmax for H heads: maximum [H], sum of weights [H], weighted values [H, value width]."""

    maximum: F32
    total: F32
    values: F32


def attend_row(
    q: F32,
    keys: NDArray[np.float16],
    values: NDArray[np.float16],
    position: int,
    spec: Attention,
    sinks: F32 | None = None,
) -> F32:
    """q float32 [H, D] at ``position``; keys float16 [position + 1, G, D], values as wide as they are, sinks [H]:
    float32 [H, value width].

    Keys are grouped in chunks of 256 by absolute position. Chunks without a
    visible key are skipped; the first other one starts the sum, each later one
    is merged into it in order. Where attention is not causal ``keys`` are those
    of the whole sequence. A sink is merged last, as a chunk of one key whose
    value is zeros.
    """
    first, end = visible(position, len(keys), spec)
    scaled = q * np.float32(spec.scale)
    state: Partial | None = None
    for start in range(first // CHUNK * CHUNK, end, CHUNK):
        low, high = max(first, start), min(end, start + CHUNK)
        chunk = _chunk(scaled, keys[low:high], values[low:high], low - start, spec)
        state = chunk if state is None else _merge(state, chunk)
    assert state is not None
    if sinks is not None:
        state = _merge(state, Partial(sinks, np.ones_like(sinks), np.zeros_like(state.values)))
    with np.errstate(all="ignore"):
        return state.values / state.total[:, None]


def visible(position: int, length: int, spec: Attention) -> tuple[int, int]:
    """The first key that a row at ``position`` of a sequence of ``length`` sees, and the one behind the last."""
    if spec.causal:
        return (0 if spec.window == 0 else max(0, position + 1 - spec.window)), position + 1
    if spec.window == 0:
        return 0, length
    reach = spec.window // 2
    return max(0, position - reach), min(length, position + reach + 1)


def _chunk(q: F32, keys: NDArray[np.float16], values: NDArray[np.float16], lane: int, spec: Attention) -> Partial:
    """Keys [n, G, D] and their values that lie in lanes ``lane``, ``lane + 1``... of their chunk."""
    group = spec.heads // spec.kv_heads
    k = np.repeat(keys.astype(np.float32), group, axis=1)
    v = np.repeat(values.astype(np.float32), group, axis=1)
    with np.errstate(all="ignore"):
        scores = np.zeros((spec.heads, len(k)), np.float32)
        for i in range(spec.head_dim):
            scores = fma32(q[:, i, None], k[:, :, i].T, scores)
        if spec.softcap:
            scores = softcap(scores, spec.softcap)
        numbers = np.where(np.isnan(scores), NEGATIVE_INFINITY, scores)
        maximum = numbers.max(axis=-1)
        difference = scores - maximum[:, None]
        weights = np.where(difference < EXP_ZERO_BELOW, np.float32(0), exp32(difference))
        in_lanes = np.zeros((spec.heads, lane + len(k)), np.float32)
        in_lanes[:, lane:] = weights
        total = strided_sum(in_lanes)
        weighted = np.zeros((spec.heads, v.shape[-1]), np.float32)
        for j in range(len(k)):
            weighted = fma32(weights[:, j, None], v[j], weighted)
    return Partial(maximum, total, weighted)


def _merge(a: Partial, b: Partial) -> Partial:
    with np.errstate(all="ignore"):
        maximum = np.where(b.maximum > a.maximum, b.maximum, a.maximum)
        fa, fb = _factor(a.maximum - maximum), _factor(b.maximum - maximum)
        total = fma32(a.total, fa, b.total * fb)
        values = fma32(a.values, fa[:, None], b.values * fb[:, None])
    return Partial(maximum, total, values)


def _factor(difference: F32) -> F32:
    return np.where(difference < EXP_ZERO_BELOW, np.float32(0), exp32(difference))
