"""Edge vectors that a device must compute with the reference's bits before it is used for anything.

A device may claim IEEE arithmetic and yet flush subnormals, fuse a product
with a sum or divide by a reciprocal; a driver update can bring that about.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.control_word import default_rounding
from kinetic.backends.reference.functions import exp32, fma32
from kinetic.bits import F32

COUNT = 65536
"""Lanes of the kernel, one for each float16."""

FUNCTIONS = ("multiply-add", "fma", "division", "square root", "exp", "float16", "int8 products", "bytes")
"""Rows of the kernel's output."""

EDGES = (
    0x00000000,  # +0
    0x80000000,  # -0
    0x00000001,  # smallest subnormal
    0x807FFFFF,  # -largest subnormal
    0x00800000,  # smallest normal
    0x12800000,  # 2^-90
    0x3EAAAAAB,  # 1/3
    0x3F800000,  # 1
    0xBF800001,  # -(1 + ulp)
    0x42B17000,  # just above 88.72, where exp overflows
    0xC2AE0000,  # -87
    0x4B400001,  # 1.5 * 2^23 + 1
    0x7F7FFFFF,  # largest
    0x7F800000,  # inf
    0xFF800000,  # -inf
    0x7FC00000,  # NaN
)

Run = Callable[[F32, F32, F32], F32]
"""Kernel self_test on a device: a, b, c float32 [COUNT] -> float32 [8, COUNT]."""


def failures(run: Run) -> list[str]:
    """The functions with a bit that is not the reference's; one NaN is as good as another."""
    operands, wanted = _cases()
    got = run(*operands)
    return [name for name, w, g in zip(FUNCTIONS, wanted, got, strict=True) if not same_bits(w, g)]


@lru_cache(maxsize=1)
def _cases() -> tuple[tuple[F32, F32, F32], F32]:
    """What is given and what must come: the same for every device."""
    operands = vectors()
    return operands, expected(*operands)


def vectors() -> tuple[F32, F32, F32]:
    """Every triple of edges, then bit patterns of all exponents, then numbers between 2^-7 and 2^9."""
    edges = np.array(list(product(EDGES, repeat=3)), np.uint32).T
    index = np.arange(COUNT - edges.shape[1], dtype=np.uint32)
    spread = np.array([[0x9E3779B1], [0x85EBCA77], [0xC2B2AE3D]], np.uint32) * index  # odd factors: no repetition
    near = (spread & 0x80000000) | (0x3C000000 + (spread >> 4 & 0x07FFFFFF))
    bits = np.concatenate([edges, np.where(index < COUNT // 4, spread, near)], axis=1)
    a, b, c = bits.view(np.float32)
    return a, b, c


def expected(a: F32, b: F32, c: F32) -> F32:
    """float32 [8, COUNT], in the order of FUNCTIONS."""
    halves = np.arange(COUNT).astype(np.uint16).view(np.float16)
    with default_rounding(), np.errstate(all="ignore"):
        rows = a * b + c, fma32(a, b, c), a / b, np.sqrt(a), exp32(a), halves.astype(np.float32)
    return np.stack([*rows, _int8_products(a, b, c), _bytes(a, b, c)])


def _int8_products(a: F32, b: F32, c: F32) -> F32:
    """Dot products of the four bytes of each, plus the upper half of c: small integers."""
    left, right = (x.view(np.int8).reshape(-1, 4).astype(np.int32) for x in (a, b))
    dots = (left * right).sum(axis=1, dtype=np.int32)  # exact: integers
    return (dots + (c.view(np.int32) >> 16)).astype(np.float32)


def _bytes(a: F32, b: F32, c: F32) -> F32:
    """Of the eight bytes of a and b the four that the digits of c choose; folded into 24 bits."""
    both = np.stack([a.view(np.uint32), b.view(np.uint32)], axis=1).view(np.uint8)
    places = np.stack([c.view(np.uint32) >> (4 * k) & 7 for k in range(4)], axis=1)
    chosen = np.ascontiguousarray(np.take_along_axis(both, places.astype(np.int64), axis=1)).view(np.uint32)[:, 0]
    return (chosen >> 8 ^ chosen & 0xFFFFFF).astype(np.float32)


def same_bits(a: F32, b: F32) -> bool:
    return np.array_equal(_without_payloads(a), _without_payloads(b))


def _without_payloads(x: F32) -> NDArray[np.uint32]:
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)
