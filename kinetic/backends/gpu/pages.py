"""Keys and values on a device: pages of 256 positions in one piece of memory a layer, taken as sequences grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.gpu.device import Device, Memory

F16 = NDArray[np.float16]


class Pages:
    """A page has the same number in every layer. What is in a page that was given back stays there, and is never read
    before it is written again: rows see only positions of their own sequence."""

    def __init__(self, device: Device, layers: Sequence[Attention]) -> None:
        self._device = device
        self._layers = {spec.layer: spec for spec in layers}
        self._memory: dict[tuple[int, str], Memory] = {}
        self._pages = 0
        self._free: list[int] = []
        self._tables: dict[int, list[int]] = {}

    def keys(self, layer: int) -> Memory:
        """float16 [pages, 256, G, D]."""
        return self._memory[layer, "keys"]

    def values(self, layer: int) -> Memory:
        """float16 [pages, 256, G, value width]."""
        return self._memory[layer, "values"]

    def table(self, sequence: int, length: int) -> list[int]:
        """The pages of a sequence, at least as many as ``length`` positions need. Raises OutOfMemory."""
        table = self._tables.setdefault(sequence, [])
        missing = -(-length // CHUNK) - len(table)
        if missing > 0:
            if len(self._free) < missing:
                self._grow(max(2 * self._pages, self._pages + missing - len(self._free), 4))
            table += [self._free.pop() for _ in range(missing)]
        return table

    def _grow(self, pages: int) -> None:
        for layer, spec in self._layers.items():
            for side, width in (("keys", spec.head_dim), ("values", spec.value_width)):
                page_bytes = 2 * CHUNK * spec.kv_heads * width
                new = self._device.memory(pages * page_bytes)
                if self._pages:
                    self._device.copy(new, self._memory[layer, side], self._pages * page_bytes)
                self._memory[layer, side] = new
        self._free += range(pages - 1, self._pages - 1, -1)
        self._pages = pages

    def truncate(self, sequence: int, length: int) -> None:
        table = self._tables.get(sequence, [])
        kept = -(-length // CHUNK)
        self._free += table[kept:]
        del table[kept:]

    def read(self, sequence: int, length: int) -> tuple[dict[int, F16], dict[int, F16]]:
        """Copies of keys and values of a sequence by layer, float16 [length, G, their width]."""
        out: dict[str, dict[int, F16]] = {"keys": {}, "values": {}}
        for layer, spec in self._layers.items():
            for side, width in (("keys", spec.head_dim), ("values", spec.value_width)):
                found = np.zeros((length, spec.kv_heads, width), np.float16)
                for number, start in enumerate(range(0, length, CHUNK)):
                    part = found[start : start + CHUNK]
                    page = self._tables[sequence][number]
                    self._device.read(self._memory[layer, side], part, page * 2 * CHUNK * spec.kv_heads * width)
                out[side][layer] = found
        return out["keys"], out["values"]

    def write(self, sequence: int, length: int, keys: Mapping[int, F16], values: Mapping[int, F16]) -> None:
        """Make these all that a sequence has."""
        self.truncate(sequence, 0)
        table = self.table(sequence, length)
        for layer, spec in self._layers.items():
            for side, given, width in (("keys", keys, spec.head_dim), ("values", values, spec.value_width)):
                for number, start in enumerate(range(0, length, CHUNK)):
                    part = np.ascontiguousarray(given[layer][start : start + CHUNK])
                    offset = table[number] * 2 * CHUNK * spec.kv_heads * width
                    self._device.write(self._memory[layer, side], part, offset)
