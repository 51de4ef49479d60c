"""Weights as the kernels read them: packed matrices, and small float vectors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

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


SLICE = 16 << 20
"""Bytes of the file that are packed at a time, and then given back: most of a model is in memory once, not twice."""


def check_table(table: Weight) -> None:
    """Raises UnsupportedModel if a scale of an embedding table is not finite. Its rows stay in the file."""
    fmt = by_type(table.ggml_type, table.name)
    rows, row_bytes = table.data.shape
    step = max(1, SLICE // row_bytes)
    for first in range(0, rows, step):
        piece = table.data[first : first + step]
        check_scales(fmt, piece, table.name)
        table.release(first * row_bytes, piece.nbytes)


def _shares(first: int, last: int, count: int) -> Iterator[tuple[int, int]]:
    """``first`` to ``last`` divided into ``count`` ranges."""
    edges = [first + (last - first) * i // count for i in range(count + 1)]
    return pairwise(edges)


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
        packed = Packed(fmt, self._arena.allocate((rows + GROUP - 1) // GROUP * group_bytes(fmt, width)), rows, width)
        pack = self._kernels.pack(fmt)
        row_bytes = source.shape[1]

        def part(groups: tuple[int, int]) -> None:
            pack(address(source), row_bytes, rows, width, address(packed.data), *groups)

        step = max(1, SLICE // (GROUP * row_bytes))
        for first in range(0, packed.groups, step):
            last = min(first + step, packed.groups)
            piece = source[first * GROUP : last * GROUP]
            check_scales(fmt, piece, weight.name)
            list(self._pool.map(part, _shares(first, last, self._threads)))
            weight.release(first * GROUP * row_bytes, piece.nbytes)
        return packed

    def close(self) -> None:
        """Give back the packing threads; what was packed stays."""
        self._pool.shutdown()
