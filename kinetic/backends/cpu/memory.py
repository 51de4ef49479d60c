"""Aligned memory that compiled kernels use by address."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
TAIL = 256
"""Readable bytes behind every allocation: kernels may read whole lines past the end of a row."""


def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed uint8 [size], 64-byte aligned, with a readable tail. Untouched pages cost no memory."""
    raw = np.zeros(size + ALIGNMENT + TAIL, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def round_up(n: int, multiple: int) -> int:
    return (n + multiple - 1) // multiple * multiple
