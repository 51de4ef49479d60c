"""Memory for keys and values: pages of 256 positions, taken as a sequence grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.cpu.memory import address, allocate_huge, round_up
from kinetic.errors import OutOfMemory


class PageLayout:
    """Where each layer's keys and values lie in a page, in bytes."""

    def __init__(self, layers: Sequence[Attention]) -> None:
        self.keys: dict[int, int] = {}
        self.values: dict[int, int] = {}
        offset = 0
        for spec in layers:
            self.keys[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * spec.head_dim * 2, 64)
            self.values[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * self.padded(spec) * 2, 64)
        self.page_bytes = offset

        self._parts = [part for spec in layers for part in self._parts_of(spec)]

    def _parts_of(self, spec: Attention) -> Iterator[tuple[int, int, int, int]]:
        """Of keys and of values: where they begin, heads, positions of a piece, its bytes."""
        yield self.keys[spec.layer], spec.kv_heads, 16, 32 * spec.head_dim
        yield self.values[spec.layer], spec.kv_heads, 1, 2 * self.padded(spec)

    def copy(self, source: NDArray[np.uint8], target: NDArray[np.uint8], count: int) -> None:
        """The first ``count`` positions of one page into another."""
        for start, heads, positions, size in self._parts:
            shape = (heads, CHUNK // positions, size)
            end, pieces = start + heads * CHUNK // positions * size, (count + positions - 1) // positions
            target[start:end].reshape(shape)[:, :pieces] = source[start:end].reshape(shape)[:, :pieces]

    @staticmethod
    def padded(spec: Attention) -> int:
        """Values' width in the cache: a multiple of 16."""
        return round_up(spec.head_dim, 16)


class Pages:
    """The page tables of all sequences. A table is an int64 array of addresses, one for each 256 positions."""

    def __init__(self, layout: PageLayout) -> None:
        self._layout = layout
        self._tables: dict[int, NDArray[np.int64]] = {}
        self._pages: dict[int, list[NDArray[np.uint8]]] = {}
        self._borrowed: dict[int, int] = {}
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
            page = self._take_page()
            table[len(pages)] = address(page)
            pages.append(page)
        return address(table)

    def truncate(self, sequence: int, length: int) -> None:
        pages = self._pages.get(sequence, [])
        keep = (length + CHUNK - 1) // CHUNK
        self._free += pages[max(keep, self._borrowed.get(sequence, 0)) :]
        del pages[keep:]
        if length == 0:
            for made in (self._pages, self._tables, self._borrowed):
                made.pop(sequence, None)

    def fork(self, source: int, target: int, length: int) -> None:
        """``target`` borrows the full pages among the first ``length`` positions, and has a copy of what remains."""
        full, rest = divmod(length, CHUNK)
        lent = self._pages.get(source, [])
        self._pages[target], self._borrowed[target] = lent[:full], full
        if rest:
            page = self._take_page()
            self._layout.copy(lent[full], page, rest)
            self._pages[target].append(page)

    def take_over(self, source: int, target: int) -> None:
        """The pages of ``target`` beyond those that its fork ``source`` borrowed give way to the fork's."""
        pages, borrowed = self._pages.pop(source), self._borrowed.pop(source)
        self._free += self._pages[target][borrowed:]
        self._pages[target], self._tables[target] = pages, self._tables.pop(source)

    def _take_page(self) -> NDArray[np.uint8]:
        return self._free.pop() if self._free else self._new_page()

    def _new_page(self) -> NDArray[np.uint8]:
        try:
            return allocate_huge(self._layout.page_bytes)
        except MemoryError:
            size = self._layout.page_bytes / 2**20
            raise OutOfMemory(
                f"no memory for another {CHUNK} positions ({size:.0f} MiB); use a smaller context"
            ) from None
