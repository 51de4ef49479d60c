"""Weights as the kernels read them: packed matrices, and small float vectors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight
from kinetic.backends.checks import SLICE
from kinetic.backends.cpu.layout import GROUP, group_bytes
from kinetic.backends.cpu.memory import ALIGNMENT, address, allocate, allocate_huge, round_up
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.packs import IS_POSSIBLE, Pack, describe
from kinetic.formats import Format, by_type, check_scales
from kinetic.types import PackCache


@dataclass(frozen=True)
class Packed:
    """A matrix [N, K] in the layout of ``layout.py``, or one after another those of experts [X, N, K]."""

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

    @property
    def matrix_bytes(self) -> int:
        """Bytes from one expert's matrix to the next one's."""
        return self.groups * self.group_bytes


def _packed_bytes(weight: Weight) -> int:
    *experts, rows, width = weight.shape
    groups = math.prod(experts) * ((rows + GROUP - 1) // GROUP)  # exact: integers
    return groups * group_bytes(by_type(weight.ggml_type, weight.name), width)


def _offsets(weights: Iterable[Weight]) -> tuple[dict[str, int], int]:
    """Where each matrix begins in one piece of memory, by name, and how many bytes all take."""
    offsets, end = {}, 0
    for weight in weights:
        offsets[weight.name] = round_up(end, ALIGNMENT)
        end = offsets[weight.name] + _packed_bytes(weight)
    return offsets, end


def _shares(first: int, last: int, count: int) -> Iterator[tuple[int, int]]:
    """``first`` to ``last`` divided into ``count`` ranges."""
    edges = [first + (last - first) * i // count for i in range(count + 1)]
    return pairwise(edges)


class WeightStore:
    """Packs each of these matrices once, all into one piece of memory, in their order. The work is divided
    over ``threads`` by groups of rows. What ``others`` have is theirs, and not packed again."""

    def __init__(
        self, kernels: Kernels, weights: Sequence[Weight], threads: int, others: Iterable[WeightStore] = ()
    ) -> None:
        self._kernels = kernels
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._lent = {weight.name: other for other in others for weight in weights if other.holds(weight)}
        self._weights = {weight.name: weight for weight in weights if weight.name not in self._lent}
        self._offsets, self.size = _offsets(self._weights.values())
        self._memory = allocate_huge(self.size)
        self._done: set[str] = set()
        self._vectors: dict[str, NDArray[np.uint8]] = {}
        self._uses = Counter(weight.name for weight in weights)
        self._written: Pack | None = None
        for name, other in self._lent.items():
            other.lends(name)

    @property
    def places(self) -> list[tuple[Weight, int]]:
        """The matrices, and where in the memory each begins."""
        return [(weight, self._offsets[name]) for name, weight in self._weights.items()]

    def holds(self, weight: Weight) -> bool:
        """Whether this is one of the matrices."""
        if other := self._lent.get(weight.name):
            return other.holds(weight)
        return self._weights.get(weight.name) is weight

    def read(self, pack: Pack) -> bool:
        """Take all matrices from a pack instead of packing them; False if there is none to trust."""
        for weight in self._weights.values():  # a bundle's bytes may be in memory, for they were checked
            weight.release(0, weight.data.nbytes)
        if not pack.read_into(self._memory.data, self._threads):
            self._memory = allocate_huge(self.size)  # packing counts on zeros
            return False
        self._done = set(self._weights)
        return True

    def offer(self, pack: Pack) -> None:
        """Let the matrices be kept in a pack. From now on none may be changed."""
        for weight in self._weights.values():
            self.packed(weight)
        pack.offer(self._memory.data)
        self._written = pack

    def packed(self, weight: Weight) -> Packed:
        if other := self._lent.get(weight.name):
            return other.packed(weight)
        fmt, at = by_type(weight.ggml_type, weight.name), self._offsets[weight.name]
        rows, width = weight.shape[-2:]
        packed = Packed(fmt, self._memory[at : at + _packed_bytes(weight)], rows, width)
        if weight.name not in self._done:
            self._pack(weight, packed)
            self._done.add(weight.name)
        return packed

    def lends(self, name: str) -> None:
        """Another store reads this matrix here."""
        self._uses[name] += 1

    def give_up(self, weight: Weight) -> NDArray[np.uint8] | None:
        """The bytes of a packed matrix, if it was asked for once and nobody else reads them, such as a pack that is
        being written: then it is no longer one of the matrices, and its place may be put to another use."""
        if self._uses[weight.name] != 1 or weight.name not in self._done:
            return None
        if self._written is not None and not self._written.is_idle:
            return None
        data = self.packed(weight).data
        del self._weights[weight.name]
        return data

    def vector(self, weight: Weight) -> int:
        """Address of a one-dimensional weight, decoded to float32 and padded with zeros to whole lines."""
        if weight.name not in self._vectors:
            values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
            memory = allocate(4 * round_up(len(values), GROUP))
            memory[: 4 * len(values)] = values.view(np.uint8)
            self._vectors[weight.name] = memory
        return address(self._vectors[weight.name])

    def vectors(self, weight: Weight) -> int:
        """Address of the rows of ``weight`` [X, N], each decoded and padded as by ``vector``."""
        if weight.name not in self._vectors:
            count, length = weight.shape
            values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(count, length)
            memory = allocate(4 * count * round_up(length, GROUP))
            memory.view(np.float32).reshape(count, -1)[:, :length] = values
            self._vectors[weight.name] = memory
        return address(self._vectors[weight.name])

    def _pack(self, weight: Weight, packed: Packed) -> None:
        size = packed.matrix_bytes
        matrices = np.ascontiguousarray(weight.data).reshape(-1, packed.rows, weight.data.shape[-1])
        for number, source in enumerate(matrices):
            self._pack_matrix(weight, packed, source, address(packed.data) + number * size, number * source.nbytes)

    def _pack_matrix(self, weight: Weight, packed: Packed, source: NDArray[np.uint8], target: int, offset: int) -> None:
        """``source`` [N, row bytes], which begins at ``offset`` of the tensor's bytes, to the address ``target``."""
        pack = self._kernels.pack(packed.fmt)
        row_bytes = source.shape[1]

        def part(groups: tuple[int, int]) -> None:
            pack(address(source), row_bytes, packed.rows, packed.width, target, *groups)

        step = max(1, SLICE // (GROUP * row_bytes))
        for first in range(0, packed.groups, step):
            last = min(first + step, packed.groups)
            piece = source[first * GROUP : last * GROUP]
            check_scales(packed.fmt, piece, weight.name)
            list(self._pool.map(part, _shares(first, last, self._threads)))
            weight.release(offset + first * GROUP * row_bytes, piece.nbytes)

    def close(self) -> None:
        """Give back the packing threads; what was packed stays."""
        self._pool.shutdown()


def open_pack(cache: PackCache | None, tables: Sequence[Weight], weights: WeightStore) -> Pack | None:
    """The pack of these weights, whether its file is there or not; None if there is to be none."""
    if cache is None or not IS_POSSIBLE:
        return None
    return Pack(cache, describe(tables, weights.places, weights.size), weights.size)
