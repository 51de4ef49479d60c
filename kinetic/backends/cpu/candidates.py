"""The best entries of rows of logits: found row by row, or of all rows of a pass by its threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.cpu.barriers import Buffer
from kinetic.backends.cpu.layout import TILE
from kinetic.backends.cpu.memory import address, allocate, round_up
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.reference.candidates import not_finite, ordered
from kinetic.bits import F32

INSERTED = 256
"""Up to this many best candidates are kept in order while scanning; more are sorted afterwards."""

LINE = 64
"""Bytes of memory that are read at once."""

Found = tuple[NDArray[Any], F32]


class Candidates:
    """Memory that the kernels of ``core_candidates`` read and write, and what they found last."""

    def __init__(self, kernels: Kernels, vocab_size: int) -> None:
        self._kernels, self._vocabulary = kernels, vocab_size
        self._make_room(vocab_size)
        self._out = allocate(64).view(np.int64)
        self._floor = np.zeros(1, np.float32)
        self._table = np.zeros(8, np.int64)
        self._results = [allocate(0)] * 3
        self._choice: tuple[int, float] | None = None
        self._rows = 0

    def _make_room(self, length: int) -> None:
        self._row = allocate(4 * round_up(length, TILE)).view(np.float32)
        self._ids = allocate(4 * length).view(np.int32)
        self._values = allocate(4 * length).view(np.float32)

    def find(self, row: F32, k: int, floor: float) -> Found:
        """See ``reference.candidates``. The row may be another program's, of more logits than this one has."""
        n = len(row)
        if n > len(self._ids):
            self._make_room(n)
        number = self._number(row, k, floor)
        if number is not None:
            return self._result(number, k, row)
        source = row
        if row.strides != (4,) or row.ctypes.data % LINE:  # kernels read whole lines of memory, and no more
            source = self._row
            source[:n] = row
        self._floor[0] = floor
        addresses = [address(a) for a in (self._floor, self._ids, self._values, self._out)]
        sorts = k == 0 or k > INSERTED
        self._kernels.candidates(address(source), n, 0 if sorts else min(k, n), *addresses)
        ids, values = _checked(self._ids, self._values, self._out, row)
        return ordered(row, ids, k) if sorts else (ids, values)

    # ---- of all rows of a pass

    def prepare(self, logits: Buffer, rows: int, choice: tuple[int, float] | None) -> int:
        """Address of the table for ``choose``: of each of ``rows`` rows the ``choice`` (k, floor); 0 for none."""
        vocabulary = self._vocabulary
        if choice is None or not rows or not 0 < choice[0] <= min(INSERTED, vocabulary):
            self._rows = 0
            return 0
        k, floor = choice
        if len(self._results[2]) < 64 * rows or len(self._results[0]) < 4 * k * rows:
            self._results = [allocate(size * max(16, rows)) for size in (4 * k, 4 * k, 64)]
        self._floor[0], self._rows = floor, rows
        places = [address(self._floor), *map(address, self._results)]
        self._table[:] = [logits.address, logits.stride, vocabulary, k, *places]
        return address(self._table)

    def made(self, choice: tuple[int, float] | None) -> None:
        """The pass is over, and its rows stand until the next."""
        self._choice = choice if self._rows else None

    def forget(self) -> None:
        self._choice = None

    def _number(self, row: F32, k: int, floor: float) -> int | None:
        """Which of the rows of the last pass this is, if just this was chosen from them."""
        if self._choice != (k, floor) or row.strides != (4,) or len(row) != self._table[2]:
            return None
        number, rest = divmod(row.ctypes.data - int(self._table[0]), int(self._table[1]))
        return number if rest == 0 and 0 <= number < self._rows else None

    def _result(self, number: int, k: int, row: F32) -> Found:
        part = slice(number * k, number * k + k)
        ids, values = self._results[0].view(np.int32)[part], self._results[1].view(np.float32)[part]
        return _checked(ids, values, self._results[2].view(np.int64)[8 * number : 8 * number + 2], row)


def _checked(ids: NDArray[Any], values: F32, out: NDArray[np.int64], row: F32) -> Found:
    """Copies of what was found; NonFinite where the row holds what isn't finite."""
    count, bad = int(out[0]), int(out[1])
    if bad or count == 0:
        raise not_finite(row)
    return ids[:count].copy(), values[:count].copy()
