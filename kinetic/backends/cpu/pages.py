"""Memory for keys and values: pages of 256 positions, taken as a sequence grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.cpu.layout import TILE
from kinetic.backends.cpu.memory import address, allocate_huge, round_up
from kinetic.backends.pages import U8, PageParts, PageTables, Part
from kinetic.errors import OutOfMemory

F16 = NDArray[np.float16]


class PageLayout(PageParts):
    """Where each layer's keys and values lie in a page, in bytes. Values are padded to a multiple of 16 elements."""

    def __init__(self, layers: Sequence[Attention]) -> None:
        self.layers = tuple(layers)
        self.keys: dict[int, int] = {}
        self.values: dict[int, int] = {}
        offset = 0
        for spec in layers:
            self.keys[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * spec.head_dim * 2, 64)
            self.values[spec.layer] = offset
            offset += round_up(spec.kv_heads * CHUNK * round_up(spec.value_width, 16) * 2, 64)
        self.page_bytes = offset
        super().__init__([part for spec in layers for part in self._parts_of(spec)])

    def _parts_of(self, spec: Attention) -> Iterator[Part]:
        yield Part(self.keys[spec.layer], spec.kv_heads, 16, 32 * spec.head_dim)
        yield Part(self.values[spec.layer], spec.kv_heads, 1, 2 * round_up(spec.value_width, 16))

    def _key_view(self, page: U8, spec: Attention) -> F16:
        """The keys of a page as they are counted, float16 [16, 16, G, D]: 16 of one head lie side by side in memory."""
        start, tiles = self.keys[spec.layer], CHUNK // TILE
        size = spec.kv_heads * CHUNK * spec.head_dim * 2
        part = page[start : start + size].view(np.float16)
        return part.reshape(spec.kv_heads, tiles, spec.head_dim, TILE).transpose(1, 3, 0, 2)

    def _value_view(self, page: U8, spec: Attention) -> F16:
        """The values of a page, float16 [16, 16, G, D]."""
        start, padded = self.values[spec.layer], round_up(spec.value_width, 16)
        size = spec.kv_heads * CHUNK * padded * 2
        part = page[start : start + size].view(np.float16).reshape(spec.kv_heads, CHUNK // TILE, TILE, padded)
        return part[..., : spec.value_width].transpose(1, 2, 0, 3)

    def get(self, page: U8, spec: Attention) -> tuple[F16, F16]:
        """Copies of the keys and values of one layer in a page, float16 [256, G, their width]."""
        keys, values = self._key_view(page, spec), self._value_view(page, spec)
        return keys.reshape(CHUNK, *keys.shape[2:]), values.reshape(CHUNK, *values.shape[2:])

    def put(self, page: U8, spec: Attention, keys: F16, values: F16) -> None:
        """Makes these, float16 [n, G, D], the first ones of the page; the others become 0."""
        for view, rows in ((self._key_view(page, spec), keys), (self._value_view(page, spec), values)):
            whole = np.zeros((CHUNK, *view.shape[2:]), np.float16)
            whole[: len(rows)] = rows
            view[...] = whole.reshape(view.shape)


class Pages(PageTables[U8]):
    """The page tables of all sequences. A table is an int64 array of addresses, one for each 256 positions."""

    def __init__(self, layout: PageLayout) -> None:
        super().__init__()
        self._layout = layout
        self._tables: dict[int, NDArray[np.int64]] = {}

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
        super().truncate(sequence, length)
        if length == 0:  # of a table of an earlier one no address may be read
            self._tables.pop(sequence, None)

    def take_over(self, source: int, target: int) -> None:
        super().take_over(source, target)
        self._tables[target] = self._tables.pop(source)

    def read(self, sequence: int, length: int) -> tuple[dict[int, F16], dict[int, F16]]:
        """Copies of the first ``length`` keys and values, float16 [length, G, D] by layer."""
        pages = self._pages.get(sequence, [])[: (length + CHUNK - 1) // CHUNK]
        keys: dict[int, F16] = {}
        values: dict[int, F16] = {}
        for spec in self._layout.layers:
            keys[spec.layer] = np.zeros((length, spec.kv_heads, spec.head_dim), np.float16)
            values[spec.layer] = np.zeros((length, spec.kv_heads, spec.value_width), np.float16)
            for number, page in enumerate(pages):
                part = slice(number * CHUNK, min(length, (number + 1) * CHUNK))
                found = self._layout.get(page, spec)
                keys[spec.layer][part], values[spec.layer][part] = (rows[: part.stop - part.start] for rows in found)
        return keys, values

    def write(self, sequence: int, length: int, keys: Mapping[int, F16], values: Mapping[int, F16]) -> None:
        """Makes what ``read`` gave all that the sequence has."""
        self.truncate(sequence, 0)
        if length == 0:
            return
        self.table(sequence, length)
        for spec in self._layout.layers:
            for number, page in enumerate(self._pages[sequence]):
                part = slice(number * CHUNK, min(length, (number + 1) * CHUNK))
                self._layout.put(page, spec, keys[spec.layer][part], values[spec.layer][part])

    def kept_bytes(self, count: int) -> int:
        return self._layout.packed_bytes(count)

    def read_block(self, sequence: int, start: int, count: int) -> U8:
        return self._layout.pack(self._pages[sequence][start // CHUNK], count)

    def write_block(self, sequence: int, start: int, count: int, data: U8) -> None:
        self.table(sequence, start + count)
        self._layout.unpack(data, self._pages[sequence][start // CHUNK], count)

    def _copy_page(self, source: U8, target: U8, count: int) -> None:
        self._layout.copy(source, target, count)

    def _new_page(self) -> U8:
        try:
            return allocate_huge(self._layout.page_bytes)
        except MemoryError:
            size = self._layout.page_bytes / 2**20
            raise OutOfMemory(
                f"no memory for another {CHUNK} positions ({size:.0f} MiB); use a smaller context"
            ) from None
