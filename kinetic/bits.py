"""float16, bfloat16 and float32 as bit patterns. Everything here is exact or rounds once, to nearest even."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

F16_MAX = np.float32(65504.0)


def f16_to_f32(raw: NDArray[np.uint8]) -> F32:
    """Little-endian float16 bytes [..., 2n] -> float32 [..., n]. Exact."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def bf16_to_f32(raw: NDArray[np.uint8]) -> F32:
    """Little-endian bfloat16 bytes [..., 2n] -> float32 [..., n]. Exact."""
    return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_f16(x: F32) -> NDArray[np.float16]:
    """Clamp to +-65504, then round to nearest even, subnormals kept. NaN stays NaN."""
    clamped = np.where(x > F16_MAX, F16_MAX, np.where(x < -F16_MAX, -F16_MAX, x))
    return clamped.astype(np.float16)


def round_f32(value: float) -> np.float32:
    """One correct rounding from binary64 to binary32."""
    return np.float32(value)
