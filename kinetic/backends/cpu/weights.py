"""Weights as the kernels read them: packed matrices, and small float vectors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight
from kinetic.backends.cpu.layout import GROUP, group_bytes
from kinetic.backends.cpu.memory import Arena, address, allocate, round_up
from kinetic.backends.cpu.native import Kernels
from kinetic.formats import Format, by_type, check_scales


@dataclass(frozen=True)
class Packed:
    """A matrix [N, K] in the layout of ``layout.py``."""

    fmt: Format
    data: NDArray[np.uint8]
    rows: int
    width: int

    @property
    def groups(self) -> int:
        return (self.rows + GROUP - 1) // GROUP

    @property
    def group_bytes(self) -> int:
        return group_bytes(self.fmt, self.width)


class WeightStore:
    """Packs each weight once. Packing is divided over ``threads`` by groups of rows."""

    def __init__(self, kernels: Kernels, threads: int) -> None:
        self._kernels = kernels
        self._threads = threads
        self._arena = Arena()
        self._pool = ThreadPoolExecutor(threads)
        self._packed: dict[str, Packed] = {}
        self._vectors: dict[str, NDArray[np.uint8]] = {}

    def packed(self, weight: Weight) -> Packed:
        if weight.name not in self._packed:
            self._packed[weight.name] = self._pack(weight)
        return self._packed[weight.name]

    def vector(self, weight: Weight) -> int:
        """Address of a one-dimensional weight, decoded to float32 and padded with zeros to whole lines."""
        if weight.name not in self._vectors:
            values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
            memory = allocate(4 * round_up(len(values), GROUP))
            memory[: 4 * len(values)] = values.view(np.uint8)
            self._vectors[weight.name] = memory
        return address(self._vectors[weight.name])

    def _pack(self, weight: Weight) -> Packed:
        fmt = by_type(weight.ggml_type, weight.name)
        rows, width = weight.shape
        source = np.ascontiguousarray(weight.data).reshape(rows, -1)
        check_scales(fmt, source, weight.name)
        packed = Packed(fmt, self._arena.allocate((rows + GROUP - 1) // GROUP * group_bytes(fmt, width)), rows, width)
        pack = self._kernels.pack(fmt)
        edges = [packed.groups * i // self._threads for i in range(self._threads + 1)]

        def part(i: int) -> None:
            pack(address(source), source.shape[1], rows, width, address(packed.data), edges[i], edges[i + 1])

        list(self._pool.map(part, range(self._threads)))
        return packed

    def close(self) -> None:
        """Give back the packing threads; what was packed stays."""
        self._pool.shutdown()
