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
"""Bytes. A walk over large memory that lies in such pages needs far fewer address translations."""


def allocate(size: int) -> NDArray[np.uint8]:
    """Zeroed uint8 [size], 64-byte aligned, with a readable tail. Untouched pages cost no memory."""
    raw = np.zeros(size + ALIGNMENT + TAIL, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def allocate_huge(size: int) -> NDArray[np.uint8]:
    """As ``allocate``, but a large piece may be backed by huge pages, each there once any byte of it is touched."""
    if size < HUGE_PAGE:
        return allocate(size)
    memory = _private(round_up(size + TAIL, HUGE_PAGE))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:size]


def _private(size: int) -> mmap.mmap:
    """Zeroed memory of this process alone. What could be shared with others, Linux by default backs with small pages.

    Raises MemoryError.
    """
    try:
        if hasattr(mmap, "MAP_ANONYMOUS"):
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def round_up(n: int, multiple: int) -> int:
    return (n + multiple - 1) // multiple * multiple


def give_back(part: NDArray[np.uint8]) -> None:
    """Gives the whole pages of a part of what ``allocate_huge`` gave back to the system: they read as zeros then."""
    base: Any = part
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = address(part) - address(np.frombuffer(base, np.uint8))
    first, last = round_up(start, mmap.PAGESIZE), (start + part.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        base.madvise(mmap.MADV_DONTNEED, first, last - first)
