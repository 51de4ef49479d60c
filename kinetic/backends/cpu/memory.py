"""Aligned memory that compiled kernels use by address."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
TAIL = 256
"""Readable bytes behind every allocation: kernels may read whole lines past the end of a row."""


HUGE_PAGE = 2 << 20


def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed uint8 [size], 64-byte aligned, with a readable tail. Untouched pages cost no memory."""
    raw = np.zeros(size + ALIGNMENT + TAIL, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def allocate_huge(size: int) -> NDArray[np.uint8]:
    """As ``allocate``, but a large piece may be backed by huge pages, whole once any of it is touched."""
    if size < HUGE_PAGE:
        return allocate(size)
    return _huge(round_up(size + TAIL, HUGE_PAGE))[:size]


def _huge(size: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class Arena:
    """Memory for weights, in large pieces that the system may back with huge pages: a walk over all weights
    then needs far fewer address translations."""

    PIECE = 64 << 20

    def __init__(self) -> None:
        self._piece: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._used = 0

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Zeroed uint8 [size], 64-byte aligned."""
        start = round_up(self._used, ALIGNMENT)
        if start + size + TAIL > len(self._piece):
            self._piece, start = _huge(round_up(max(size + TAIL, self.PIECE), HUGE_PAGE)), 0
        self._used = start + size
        return self._piece[start : start + size]


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def round_up(n: int, multiple: int) -> int:
    return (n + multiple - 1) // multiple * multiple
