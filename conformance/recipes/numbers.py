"""Numbers of recipes, all from ``philox``: a seed and a stream name a whole matrix.

Quantised matrices are random blocks with sensible scales, made from what a format says of itself
(``kinetic.formats.Format``), so a format that is added later needs nothing here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.recipes.philox import random_bits
from kinetic.api.probe import Format

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

UNIFORM = np.float32(3.4641016)
"""Square root of 12: a uniform number's range to its deviation."""

FACTORS = {"block": 1.0, "superblock": 56.0, "halves": 74.0}
"""How much the integer factors of a block (``Format.SCALES``) widen it."""


def integers(seed: int, stream: int, low: int, high: int, count: int) -> list[int]:
    """Whole numbers low .. high - 1."""
    found: list[int] = ((random_bits(seed, stream, count) >> np.uint64(11)) % np.uint64(high - low)).tolist()
    return [low + value for value in found]


def uniforms(seed: int, stream: int, count: int) -> F32:
    """float32 [count] in [0, 1) with 24 random bits."""
    return (random_bits(seed, stream, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def normals(seed: int, stream: int, *shape: int) -> F32:
    """float32, mean 0 and deviation 1: sums of four uniforms, so at most 3.5 from 0."""
    halves = random_bits(seed, stream, int(np.prod(shape))).astype("<u8").view("<u2").reshape(-1, 4)
    parts = halves.astype(np.int32).sum(axis=1)  # exact: integers
    found: F32 = ((parts - 131070).astype(np.float32) * np.float32(1 / 37837)).reshape(shape)
    return found


def matrix(fmt: Format, rows: int, columns: int, seed: int, stream: int, spread: float) -> Bytes:
    """A valid matrix as it lies in a file, uint8 [rows, row bytes], its values about ``spread`` wide.

    Takes the streams ``stream`` and ``stream`` + 1.
    """
    if not fmt.QUANTISED:
        return encode(fmt, normals(seed, stream, rows, columns) * np.float32(spread))
    count = rows * (columns // fmt.BLOCK)
    raw = random_bits(seed, stream, -(-count * fmt.BYTES // 8)).astype("<u8").view(np.uint8)
    blocks = raw[: count * fmt.BYTES].reshape(count, fmt.BYTES).copy()
    deviation = np.float32(FACTORS[fmt.SCALES] * (1 << fmt.BITS)) / UNIFORM
    d = (np.float32(0.5) + uniforms(seed, stream + 1, count)) * (np.float32(spread) / deviation)
    _put_half(blocks, fmt.D_AT, d)
    if fmt.M_AT >= 0:  # so that the values are centred at 0
        middle = np.float32(((1 << fmt.BITS) - 1) / 2)
        _put_half(blocks, fmt.M_AT, d * (middle if fmt.SCALES == "superblock" else -middle))
    return blocks.reshape(rows, -1)


def encode(fmt: Format, values: F32) -> Bytes:
    """float32 [rows, columns] in a float format: uint8 [rows, row bytes]."""
    values = np.ascontiguousarray(values, "<f4")
    if fmt.NAME == "F16":
        return values.astype("<f2").view(np.uint8)
    raw = values.view(np.uint8)
    if fmt.NAME == "BF16":  # the upper halves
        return np.ascontiguousarray(raw.reshape(len(values), -1, 4)[..., 2:]).reshape(len(values), -1)
    return raw


def _put_half(blocks: Bytes, at: int, values: F32) -> None:
    """Writes float16 values [n] at byte ``at`` of each block [n, BYTES]."""
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
