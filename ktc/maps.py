"""Maps of files, and the memory behind them."""

from __future__ import annotations

import mmap


def release_pages(memory: mmap.mmap, offset: int, length: int) -> None:
    """Take whole pages of a read-only map of a file out of memory; read again, they come from the file again."""
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (offset + length - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0 and hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, begin, whole)
