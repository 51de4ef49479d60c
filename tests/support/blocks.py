"""Random weights of every format, and other numbers for tests, all from a counter: the same on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight
from kinetic.bits import F32
from kinetic.formats import RUNNABLE, Format, by_type
from kinetic.formats.samples import put_scales

FORMATS: dict[str, Format] = {by_type(type_id, "").NAME: by_type(type_id, "") for type_id in sorted(RUNNABLE)}
QUANTISED = [name for name, fmt in FORMATS.items() if fmt.QUANTISED]
FLOATS = [name for name, fmt in FORMATS.items() if not fmt.QUANTISED]

# Standard deviation of a random block whose scale d is 1, and the ratio of m (or dmin) to d that centres it.
DEVIATION = {
    "Q4_0": 4.6,
    "Q4_1": 4.6,
    "Q5_0": 9.2,
    "Q5_1": 9.2,
    "Q8_0": 74.0,
    "Q4_K": 258.0,
    "Q5_K": 526.0,
    "Q6_K": 1369.0,
    "Q2_K": 13.8,
    "Q3_K": 43.7,
    "IQ1_S": 7.2,
    "IQ1_M": 7.2,
    "IQ2_XXS": 54.0,
    "IQ2_XS": 56.0,
    "IQ2_S": 56.0,
    "IQ3_XXS": 141.0,
    "IQ3_S": 140.0,
    "IQ4_NL": 67.0,
    "IQ4_XS": 1250.0,
    "TQ1_0": 0.82,
    "TQ2_0": 1.12,
    "MXFP4": 5.8,
    "NVFP4": 8.6,
    "Q1_0": 1.0,
    "Q2_0": 1.12,
}
CENTRE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def words(seed: int, count: int) -> NDArray[np.uint64]:
    """splitmix64 (Steele, Lea and Flood, 2014) of ``count`` counters; the stream is named by ``seed``."""
    with np.errstate(over="ignore"):
        start = np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def integers(seed: int, low: int, high: int, *shape: int) -> NDArray[np.int64]:
    """Whole numbers low .. high - 1."""
    span = np.uint64(high - low)
    return ((words(seed, int(np.prod(shape))) >> np.uint64(11)) % span).astype(np.int64).reshape(shape) + low


def uniforms(seed: int, *shape: int) -> F32:
    """float32 in [0, 1) with 24 random bits."""
    bits = words(seed, int(np.prod(shape))) >> np.uint64(40)
    return (bits.astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def normals(seed: int, *shape: int) -> F32:
    """float32, mean 0 and deviation 1: sums of four uniforms, so at most 3.5 from 0."""
    parts = words(seed, int(np.prod(shape))).view(np.uint16).reshape(-1, 4).astype(np.int32).sum(axis=1)
    return ((parts - 131070).astype(np.float32) * np.float32(1 / 37837)).reshape(shape)


def any_floats(seed: int, *shape: int) -> F32:
    """float32 of every sign, exponent and payload, NaNs and infinities among them."""
    return words(seed, int(np.prod(shape))).astype(np.uint32).view(np.float32).reshape(shape)


def random_rows(fmt: Format, rows: int, columns: int, seed: int, spread: float = 1.0) -> NDArray[np.uint8]:
    """A valid matrix as it lies in a file, uint8 [rows, row bytes], its values ``spread`` wide."""
    if not fmt.QUANTISED:
        return encode_floats(fmt, normals(seed, rows, columns) * np.float32(spread))
    count = rows * (columns // fmt.BLOCK)
    blocks = words(seed, (count * fmt.BYTES + 7) // 8).view(np.uint8)[: count * fmt.BYTES].reshape(count, fmt.BYTES)
    d = (np.float32(0.5) + uniforms(seed + 1, count)) * np.float32(spread / DEVIATION[fmt.NAME])
    put_scales(fmt, blocks, d, d * np.float32(CENTRE.get(fmt.NAME, 0)))
    return blocks.reshape(rows, -1)


def encode_floats(fmt: Format, values: F32) -> NDArray[np.uint8]:
    """float32 [rows, columns] in a float format: uint8 [rows, row bytes]."""
    values = np.ascontiguousarray(values, np.float32)
    if fmt.NAME == "F16":
        values = values.astype("<f2")
    raw = values.view(np.uint8).reshape(len(values), -1)
    if fmt.NAME == "BF16":  # the upper halves
        raw = raw.reshape(len(values), -1, 4)[..., 2:].reshape(len(values), -1)
    return np.ascontiguousarray(raw)


def random_weight(name: str, kind: str, rows: int, columns: int, seed: int, spread: float = 1.0) -> Weight:
    """A matrix [rows, columns] of format ``kind``."""
    fmt = FORMATS[kind]
    return Weight(name, fmt.TYPE_ID, (rows, columns), random_rows(fmt, rows, columns, seed, spread))


def float_weight(name: str, values: F32) -> Weight:
    """float32 [N, K] or [K] as an F32 weight."""
    matrix = np.ascontiguousarray(np.atleast_2d(values), np.float32)
    return Weight(name, 0, np.shape(values), encode_floats(FORMATS["F32"], matrix))
