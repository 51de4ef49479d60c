"""Memory for keys and values: pages of 256 positions, taken as a sequence grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.cpu.memory import address, allocate_huge, round_up
from kinetic.errors import OutOfMemory


class PageLayout:
    """Where each layer's keys and values lie in a page, in bytes. Values are padded to a multiple of 16 elements."""

    def __init__(self, layers: Sequence[Attention]) -> None:
        self.keys: dict[int, int] = {}
        self.values: dict[int, int] = {}
        offset = 0
        for spec in layers:
            self.keys[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * spec.head_dim * 2, 64)
            self.values[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * round_up(spec.value_width, 16) * 2, 64)
        self.page_bytes = offset


class Pages:
    """The page tables of all sequences. A table is an int64 array of addresses, one for each 256 positions."""

    def __init__(self, layout: PageLayout) -> None:
        self._layout = layout
        self._tables: dict[int, NDArray[np.int64]] = {}
        self._pages: dict[int, list[NDArray[np.uint8]]] = {}
        self._free: list[NDArray[np.uint8]] = []

    def table(self, sequence: int, length: int) -> int:
        """Address of the table of ``sequence``, with room for ``length`` positions."""
        pages = self._pages.setdefault(sequence, [])
        needed = (length + CHUNK - 1) // CHUNK
        table = self._tables.get(sequence)
        if table is None or len(table) < needed:
            grown = np.zeros(max(16, 2 * needed), np.int64)
            grown[: len(pages)] = [address(page) for page in pages]
            table = self._tables[sequence] = grown
        while len(pages) < needed:
            page = self._free.pop() if self._free else self._new_page()
            table[len(pages)] = address(page)
            pages.append(page)
        return address(table)

    def truncate(self, sequence: int, length: int) -> None:
        pages = self._pages.get(sequence, [])
        keep = (length + CHUNK - 1) // CHUNK
        self._free += pages[keep:]
        del pages[keep:]
        if length == 0:
            self._pages.pop(sequence, None)
            self._tables.pop(sequence, None)

    def _new_page(self) -> NDArray[np.uint8]:
        try:
            return allocate_huge(self._layout.page_bytes)
        except MemoryError:
            size = self._layout.page_bytes / 2**20
            raise OutOfMemory(
                f"no memory for another {CHUNK} positions ({size:.0f} MiB); use a smaller context"
            ) from None
