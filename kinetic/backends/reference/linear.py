"""Products with weights, in the order docs/NUMERICS.md lays down. Slow and plain: this is the definition."""

from __future__ import annotations

import numpy as np

from kinetic.backends.base import BLOCK, CHUNK, Weight
from kinetic.backends.reference.functions import fma32
from kinetic.backends.reference.quantise import quantise
from kinetic.bits import F32
from kinetic.formats import Integers, by_type, check_scales


def linear(x: F32, weight: Weight) -> F32:
    """x float32 [T, K] times weight [N, K] transposed: [T, N]."""
    fmt = by_type(weight.ggml_type, weight.name)
    if len(x) == 0:  # a pass over a part of a prompt wants no logits
        return np.zeros((0, len(weight.data)), np.float32)
    with np.errstate(all="ignore"):
        if fmt.QUANTISED:
            check_scales(fmt, weight.data, weight.name)
            return quantised_product(x, fmt.integers(weight.data))
        return float_product(x, fmt.decode(weight.data).reshape(weight.shape))


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
    """Blocks of 32: the integer dot product is exact, ``acc = fma(dot, dw * dx, acc)``,
    then with a minimum ``acc = fma(m, dx * sum(q), acc)``. Eight blocks make a chunk."""
    activations = quantise(x)
    blocks = activations.d.shape[1]
    total = np.zeros((len(x), len(w.q)), np.float32)
    for first in range(0, blocks, CHUNK // BLOCK):
        partial = np.zeros_like(total)
        for b in range(first, min(first + CHUNK // BLOCK, blocks)):
            q, d = activations.q[:, b], activations.d[:, b]
            dot = _block_dot(q, w, b).astype(np.float32)
            partial = fma32(dot, w.scale[None, :, b] * d[:, None], partial)
            if w.minimum is not None:
                scaled_sum = d * q.sum(axis=-1).astype(np.float32)  # exact: integers
                partial = fma32(w.minimum[None, :, b], scaled_sum[:, None], partial)
        total = total + partial
    return total


def _block_dot(q: np.ndarray, w: Integers, b: int) -> np.ndarray:
    """Exact int32 [T, N] of block b: activations q int32 [T, 32] with the weights' integers."""
    products = q[:, None, :] * w.q[None, :, b * BLOCK : (b + 1) * BLOCK].astype(np.int32)
    if w.sub is None:
        return products.sum(axis=-1, dtype=np.int32)  # exact: integers
    halves = products.reshape(*products.shape[:2], 2, 16).sum(axis=-1, dtype=np.int32)  # exact: integers
    factors = w.sub[None, :, 2 * b : 2 * b + 2].astype(np.int32)
    return (halves * factors).sum(axis=-1, dtype=np.int32)  # exact: integers
