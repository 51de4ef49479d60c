"""Numbers of recipes, all from ``philox``: a seed and a stream name a whole matrix.

Quantised matrices are random blocks with sensible scales, made from what a format says of itself
(``kinetic.formats.Format``), so a format that is added later needs nothing here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.recipes.philox import random_bits
from kinetic.api.probe import Format, put_scales

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

UNIFORM = np.float32(3.4641016)
"""Square root of 12: a uniform number's range to its deviation."""

FACTORS = {"block": 1.0, "pairs": 1.0, "superblock": 56.0, "halves": 74.0}
"""How much the integer factors of a block (``Format.SCALES``) widen it."""

SMALL_FACTORS = {"Q2_K": 9.0, "Q3_K": 18.5, "IQ4_XS": 18.5, "IQ1_S": 9.0, "IQ1_M": 9.0} | dict.fromkeys(
    ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), 18.5
)
"""The same for formats whose factors have 3 or 4 bits, or 6 with a sign."""


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
    factor = SMALL_FACTORS.get(fmt.NAME, FACTORS[fmt.SCALES])
    span = 1 << fmt.BITS if fmt.TABLE is None else max(fmt.TABLE) - min(fmt.TABLE)
    deviation = np.float32(factor * fmt.UNIT * span) / UNIFORM
    d = (np.float32(0.5) + uniforms(seed, stream + 1, count)) * (np.float32(spread) / deviation)
    middle = np.float32(((1 << fmt.BITS) - 1) / 2)  # so that values with minimums are centred at 0
    put_scales(fmt, blocks, d, d * (-middle if fmt.SCALES == "block" else middle))
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
