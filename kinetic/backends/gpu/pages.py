"""Keys and values on a device: pages of 256 positions in one piece of memory a layer, taken as sequences grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.pages import U8, PageParts, PageTables, Part
from kinetic.errors import OutOfMemory

F16 = NDArray[np.float16]

PIECE = 8
"""Elements of a head that are read at once: 16 bytes."""


def pieces_of(width: int) -> int:
    return -(-width // PIECE)


class LayerPages(PageParts):
    """Pages of one layer, as kernels/pages.h says how they lie."""

    def __init__(self, spec: Attention) -> None:
        self.spec = spec
        self._keys, self._values = pieces_of(spec.head_dim), pieces_of(spec.value_width)
        self.pieces = spec.kv_heads * (self._keys + self._values)
        """Of one position."""
        self._middle = 2 * PIECE * CHUNK * spec.kv_heads * self._keys
        self.page_bytes = 2 * PIECE * CHUNK * self.pieces
        keys = Part(0, spec.kv_heads * self._keys, 1, 2 * PIECE)
        super().__init__([keys, Part(self._middle, spec.kv_heads, 1, 2 * PIECE * self._values)])

    def sides(self, page: U8) -> tuple[F16, F16]:
        """Keys and values of a page where they lie, float16 [256, G, their width, padded to pieces]; the keys' elements
        are [256, G, pieces, 8]."""
        heads, halves = self.spec.kv_heads, page.view(np.float16)
        middle = self._middle // 2
        keys = halves[:middle].reshape(heads, self._keys, CHUNK, PIECE).transpose(2, 0, 1, 3)
        return keys, halves[middle:].reshape(heads, CHUNK, self._values * PIECE).transpose(1, 0, 2)

    def get(self, page: U8) -> tuple[F16, F16]:
        """Copies of keys and values, float16 [256, G, their width]."""
        keys, values = self.sides(page)
        whole = keys.reshape(CHUNK, self.spec.kv_heads, self._keys * PIECE)
        return whole[..., : self.spec.head_dim], values[..., : self.spec.value_width]

    def page(self, keys: F16, values: F16) -> U8:
        """A page that begins with these, float16 [n, G, their width]; all else is 0."""
        page = np.zeros(self.page_bytes, np.uint8)
        for target, given, pieces in zip(self.sides(page), (keys, values), (self._keys, self._values), strict=True):
            whole = np.zeros((CHUNK, self.spec.kv_heads, pieces * PIECE), np.float16)
            whole[: len(given), :, : given.shape[2]] = given
            target[...] = whole.reshape(target.shape)
        return page


class Pages(PageTables[int]):
    """A page has the same number in every layer. What is in a page that was given back stays there, and is never read
    before it is written again: rows see only positions of their own sequence."""

    def __init__(self, device: Device, layers: Sequence[Attention]) -> None:
        super().__init__()
        self._device, self._launches = device, Launches(device)
        self._layers = {spec.layer: LayerPages(spec) for spec in layers}
        self._memory: dict[int, Memory] = {}
        self._count = 0

    def pieces(self, layer: int) -> int:
        """Of what one position has in a layer, 16 bytes each."""
        return self._layers[layer].pieces

    def memory(self, layer: int) -> Memory:
        """All pages of a layer."""
        return self._memory[layer]

    def table(self, sequence: int, length: int) -> list[int]:
        """The pages of a sequence, at least as many as ``length`` positions need. Raises OutOfMemory."""
        pages = self._pages.setdefault(sequence, [])
        while len(pages) * CHUNK < length:
            pages.append(self._take_page())
        return pages

    def _new_page(self) -> int:
        try:
            self._grow(max(2 * self._count, 4))
        except OutOfMemory:  # perhaps there is enough for what is needed now
            self._grow(self._count + 1)
        return self._free.pop()

    def _grow(self, count: int) -> None:
        for number, layer in self._layers.items():
            new = self._device.memory(count * layer.page_bytes)
            if self._count:
                self._device.copy(new, self._memory[number], self._count * layer.page_bytes)
            self._memory[number] = new
        self._free += range(count - 1, self._count - 1, -1)
        self._count = count

    def close(self) -> None:
        """Give back the memory of all pages."""
        self._memory.clear()

    def _copy_page(self, source: int, target: int, count: int) -> None:
        """All of it: what lies behind the first ``count`` positions is written before it is read."""
        for number, layer in self._layers.items():
            numbers = np.int32(source), np.int32(target)
            self._launches.each("pages", "copy_page", CHUNK * layer.pieces, self._memory[number], *numbers)

    def read(self, sequence: int, length: int) -> tuple[dict[int, F16], dict[int, F16]]:
        """Copies of keys and values of a sequence by layer, float16 [length, G, their width]."""
        keys: dict[int, F16] = {}
        values: dict[int, F16] = {}
        for number, layer in self._layers.items():
            spec = layer.spec
            keys[number] = np.zeros((length, spec.kv_heads, spec.head_dim), np.float16)
            values[number] = np.zeros((length, spec.kv_heads, spec.value_width), np.float16)
            for start in range(0, length, CHUNK):
                found = layer.get(self._read_page(number, self._pages[sequence][start // CHUNK]))
                for side, rows in zip((keys[number], values[number]), found, strict=True):
                    side[start : start + CHUNK] = rows[: length - start]
        return keys, values

    def write(self, sequence: int, length: int, keys: Mapping[int, F16], values: Mapping[int, F16]) -> None:
        """Make these all that a sequence has."""
        self.truncate(sequence, 0)
        for start, page in zip(range(0, length, CHUNK), self.table(sequence, length), strict=True):
            part = slice(start, start + CHUNK)
            for number, layer in self._layers.items():
                self._write_page(number, page, layer.page(keys[number][part], values[number][part]))

    def kept_bytes(self, count: int) -> int:
        size = 0
        for layer in self._layers.values():
            size += layer.packed_bytes(count)
        return size

    def read_block(self, sequence: int, start: int, count: int) -> U8:
        """A whole page is kept as it lies."""
        page, out = self._pages[sequence][start // CHUNK], np.empty(self.kept_bytes(count), np.uint8)
        for number, layer, part in self._parts_of(out, count):
            if count == CHUNK:
                self._device.read(self._memory[number], part, page * layer.page_bytes)
            else:
                part[:] = layer.pack(self._read_page(number, page), count)
        return out

    def write_block(self, sequence: int, start: int, count: int, data: U8) -> None:
        page = self.table(sequence, start + count)[start // CHUNK]
        for number, layer, part in self._parts_of(data, count):
            whole = part
            if count < CHUNK:
                whole = np.zeros(layer.page_bytes, np.uint8)
                layer.unpack(part, whole, count)
            self._write_page(number, page, whole)

    def _parts_of(self, data: U8, count: int) -> Iterator[tuple[int, LayerPages, U8]]:
        at = 0
        for number, layer in self._layers.items():
            size = layer.packed_bytes(count)
            yield number, layer, data[at : at + size]
            at += size

    def _read_page(self, number: int, page: int) -> U8:
        out = np.empty(self._layers[number].page_bytes, np.uint8)
        self._device.read(self._memory[number], out, page * len(out))
        return out

    def _write_page(self, number: int, page: int, data: U8) -> None:
        self._device.write(self._memory[number], np.ascontiguousarray(data), page * len(data))
