"""Pages of 256 positions, whatever memory they lie in: which ones a sequence has, and parts of them without gaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK

U8 = NDArray[np.uint8]
Page = TypeVar("Page")


class Part(NamedTuple):
    """Keys or values of a layer in a page: from byte ``start`` on uint8 [heads, 256 / positions, size]."""

    start: int
    heads: int
    positions: int
    """Of one piece of ``size`` bytes."""
    size: int


class PageParts:
    """The first positions of a page, read and written."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def copy(self, source: U8, target: U8, count: int) -> None:
        """The first ``count`` positions of one page into another."""
        for start, heads, positions, size in self._parts:
            shape = (heads, CHUNK // positions, size)
            end, pieces = start + heads * CHUNK // positions * size, (count + positions - 1) // positions
            target[start:end].reshape(shape)[:, :pieces] = source[start:end].reshape(shape)[:, :pieces]

    def packed_bytes(self, count: int) -> int:
        """Of ``pack``."""
        size = 0
        for _, heads, positions, piece in self._parts:
            size += heads * ((count + positions - 1) // positions) * piece
        return size

    def pack(self, page: U8, count: int) -> U8:
        """The first ``count`` positions of a page without gaps, zeros where a tile of keys has more positions."""
        out = np.empty(self.packed_bytes(count), np.uint8)
        for there, here, rest in self._pieces(page, out, count):
            here[...] = there
            if rest:
                heads, _, size = here.shape
                here[:, -1].reshape(heads, size // 32, 32)[:, :, 2 * rest :] = 0
        return out

    def unpack(self, data: U8, page: U8, count: int) -> None:
        """Put back what ``pack`` gave."""
        for there, here, _ in self._pieces(page, data, count):
            there[...] = here

    def _pieces(self, page: U8, packed: U8, count: int) -> Iterator[tuple[U8, U8, int]]:
        """Of each part: where it lies in a page and in what is packed, [heads, pieces, bytes], and how many positions
        its last tile has, 0 if all."""
        at = 0
        for start, heads, positions, size in self._parts:
            pieces = (count + positions - 1) // positions
            whole = page[start : start + heads * CHUNK // positions * size].reshape(heads, CHUNK // positions, size)
            length = heads * pieces * size
            yield whole[:, :pieces], packed[at : at + length].reshape(heads, pieces, size), count % positions
            at += length


class PageTables(ABC, Generic[Page]):
    """The pages of all sequences, in the order of positions. A fork borrows full pages of its source."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Page]] = {}
        self._borrowed: dict[int, int] = {}
        self._free: list[Page] = []

    @abstractmethod
    def _new_page(self) -> Page:
        """Raises OutOfMemory."""

    @abstractmethod
    def _copy_page(self, source: Page, target: Page, count: int) -> None:
        """The first ``count`` positions."""

    def _take_page(self) -> Page:
        return self._free.pop() if self._free else self._new_page()

    def truncate(self, sequence: int, length: int) -> None:
        pages = self._pages.get(sequence, [])
        keep = (length + CHUNK - 1) // CHUNK
        self._free += pages[max(keep, self._borrowed.get(sequence, 0)) :]
        del pages[keep:]
        if sequence in self._borrowed:
            self._borrowed[sequence] = min(self._borrowed[sequence], keep)
        if length == 0:
            self._pages.pop(sequence, None)
            self._borrowed.pop(sequence, None)

    def fork(self, source: int, target: int, length: int) -> None:
        """``target`` borrows the full pages among the first ``length`` positions, and has a copy of what remains."""
        self.truncate(target, 0)
        full, rest = divmod(length, CHUNK)
        lent = self._pages.get(source, [])
        self._pages[target], self._borrowed[target] = lent[:full], full
        if rest:
            page = self._take_page()
            self._copy_page(lent[full], page, rest)
            self._pages[target].append(page)

    def take_over(self, source: int, target: int) -> None:
        """The pages of ``target`` beyond those that its fork ``source`` borrowed give way to the fork's."""
        pages, borrowed = self._pages.pop(source), self._borrowed.pop(source)
        self._free += self._pages[target][borrowed:]
        self._pages[target] = pages
