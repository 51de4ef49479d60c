"""Products with weights, in the order docs/NUMERICS.md lays down. Slow and plain: this is the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK, CHUNK, Weight
from kinetic.backends.reference.functions import fma32
from kinetic.backends.reference.quantise import quantise
from kinetic.bits import F32
from kinetic.formats import Integers, by_type, check_scales

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]


def linear(x: F32, weight: Weight) -> F32:
    """x float32 [T, K] times weight [N, K] transposed: [T, N]."""
    fmt = by_type(weight.ggml_type, weight.name)
    data = weight.data.reshape(-1, weight.data.shape[-1])  # parts of rows may lie apart
    if len(x) == 0:  # a pass over a part of a prompt wants no logits
        return np.zeros((0, len(data)), np.float32)
    with np.errstate(all="ignore"):
        if fmt.QUANTISED:
            check_scales(fmt, data, weight.name)
            return quantised_product(x, fmt.integers(data))
        return float_product(x, fmt.decode(data).reshape(weight.shape))


def float_product(x: F32, w: F32) -> F32:
    """Chunks of 256 elements: sequential fma from +0 inside one, then the partial sums added in order from +0."""
    total = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, x.shape[1], CHUNK):
        partial = np.zeros_like(total)
        for k in range(start, min(start + CHUNK, x.shape[1])):
            partial = fma32(x[:, k, None], w[None, :, k], partial)
        total = total + partial
    return total


def quantised_product(x: F32, w: Integers) -> F32:
    """Blocks of 32, eight of which make a chunk. In each ``partial = fma(dot, dw * dx, partial)``, dot exact; with a
    scale for each 16 values this is done for the first half, then for the second. Where there is a minimum,
    ``partial = fma(m, dx * sum(q), partial)`` follows."""
    activations = quantise(x)
    blocks = activations.d.shape[1]
    scales = w.scale.reshape(len(w.q), blocks, w.scale.shape[1] // blocks)
    total = np.zeros((len(x), len(w.q)), np.float32)
    for first in range(0, blocks, CHUNK // BLOCK):
        partial = np.zeros_like(total)
        for b in range(first, min(first + CHUNK // BLOCK, blocks)):
            q, d = activations.q[:, b], activations.d[:, b]
            dots = _dots(q, w.q[:, b * BLOCK : (b + 1) * BLOCK], _halves(w.sub, b), scales.shape[2])
            for part in range(scales.shape[2]):
                dw = scales[None, :, b, part]
                partial = fma32(dots[..., part].astype(np.float32), dw * d[:, None], partial)
            if w.minimum is not None:
                scaled_sum = d[:, None] * _sum(q, _halves(w.sub_minimum, b)).astype(np.float32)
                partial = fma32(w.minimum[None, :, b], scaled_sum, partial)
        total = total + partial
    return total


def _halves(factors: I8 | None, b: int) -> I32 | None:
    """The two factors of block b, int32 [N, 2]; None where there are none."""
    return None if factors is None else factors[:, 2 * b : 2 * b + 2].astype(np.int32)


def _dots(q: I32, w: I8, factors: I32 | None, parts: int) -> I32:
    """Exact int32 [T, N, parts] of a block: activations q [T, 32] with weights w [N, 32], times the halves' factors."""
    products = q[:, None, :] * w[None, :, :].astype(np.int32)
    halves = products.reshape(len(q), len(w), 2, 16).sum(axis=-1, dtype=np.int32)  # exact: integers
    if factors is not None:
        halves = halves * factors
    return halves if parts == 2 else halves.sum(axis=-1, dtype=np.int32, keepdims=True)  # exact: integers


def _sum(q: I32, factors: I32 | None) -> I32:
    """Exact sums of a block's activations q [T, 32], halves times their factors: int32 [T, N], or [T, 1] without."""
    halves = q.reshape(len(q), 1, 2, 16).sum(axis=-1, dtype=np.int32)  # exact: integers
    if factors is not None:
        halves = halves * factors
    return halves.sum(axis=-1, dtype=np.int32)  # exact: integers
