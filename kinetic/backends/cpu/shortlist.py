"""The output layer where only the best logits are wanted: bounds of all rows from a small copy of the matrix, and exact
logits of those that can still win. docs/adr/0013 has the proof, docs/PERFORMANCE.md what it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.halves import SUFFIX, rest_bytes
from kinetic.backends.cpu.layout import GROUP, LINE, NIBBLES, TILE
from kinetic.backends.cpu.memory import address, allocate, allocate_huge, give_back, round_up
from kinetic.backends.cpu.tiles import MANY, ONE, TWO
from kinetic.formats import by_type

if TYPE_CHECKING:
    from kinetic.backends.base import Weight
    from kinetic.backends.cpu.native import Kernels
    from kinetic.backends.cpu.weights import Packed, WeightStore
    from kinetic.backends.graph import Node

SMALLEST = 32 << 20
"""Bytes of a matrix from which on it pays. A smaller one is read from nearer caches."""

MOST = 8
"""More of the best logits leave too many groups: with 40 there is nothing to gain."""

LEADERS = 32
"""Groups with the largest bounds, whose logits say what the others have to reach."""

AFTER = 24
"""Passes that would have been shorter before the copy is made: it costs about as much as these save."""

TRIAL, PAUSE = 32, 256
"""After so many passes in which too many groups were left, so many are computed in the plain way."""

PIECE = 16 << 20
"""Bytes of the packed matrix that are given back at a time, once their rest was copied."""

WORDS = 8
MOST_WIDTH = 65536


@dataclass(frozen=True)
class Output:
    """The product that makes the logits; ``words`` int64 [8] are those of ``core_shortlist.output``."""

    weight: Weight
    packed: Packed
    words: NDArray[np.int64]


def is_possible(node: Node, packed: Packed) -> bool:
    """Whether the logits are nothing but this product, with a matrix of the one format that has bounds."""
    plain = node["bias"] is None and not node.uses
    return plain and packed.fmt is by_type(8, "Q8_0") and packed.width <= MOST_WIDTH


def is_worth(packed: Packed) -> bool:
    """Whether the matrix is so large that reading it is what the product costs."""
    return packed.matrix_bytes >= SMALLEST


class Shortlist:
    """Makes the copy when it has been missed often enough, and does without where it leaves too many groups.

    ``code`` int64 [n, WORDS] are the instructions of the tape, ``store`` has the packed matrix: where nobody else
    needs that, the copy takes the place of half of it."""

    def __init__(
        self, kernels: Kernels, output: Output, threads: int, code: NDArray[np.int64], store: WeightStore
    ) -> None:
        self._kernels, self._output, self._threads = kernels, output, threads
        self._code, self._store = code, store
        self._rest: NDArray[np.uint8] | None = None
        self._missed = 0
        self._left = self._tried = self._paused = 0
        self._is_impossible = False
        self._copy: NDArray[np.uint8] | None = None
        self._copy_bytes = 0
        self.is_broken = False
        """Whether the matrix was lost on its way to halves. Then nothing may be computed any more."""

    def begin(self, best: int, *, can_wait: bool = True) -> int:
        """How many of the best logits the next pass shall tell apart; 0: all logits, as always. A copy is made where
        the pass ``can_wait`` for it."""
        if not 0 < best <= MOST or self._is_impossible:
            return 0
        if self._paused:
            self._paused -= 1
            return 0
        if self._copy is None:
            if not can_wait:
                return 0
            self._missed += 1
            if self._missed <= AFTER or not self._make():
                return 0
        return best

    def end(self) -> None:
        """After a pass: how many groups were left."""
        self._left += self.left
        self._tried += 1
        if self._tried == TRIAL:
            if self._rest is None:  # it may have been in use, as by a pack that was being written
                self._leave_rest()
            # Bounds cost half of the product, so with half of the groups left nothing is gained.
            if self._left > TRIAL * self._output.packed.groups * 4 // 10:
                self._paused = PAUSE
            self._left = self._tried = 0

    @property
    def left(self) -> int:
        """Groups whose logits were computed in the last pass."""
        counts = self._own.view(np.int64).reshape(self._threads, -1)[:, 6]
        return int(counts.sum())  # exact: integers

    def _make(self) -> bool:
        packed, words = self._output.packed, self._output.words
        blocks = packed.width // BLOCK
        size = LINE + round_up(2 * GROUP * blocks, LINE) + NIBBLES * blocks  # as ``bounds`` has it
        bad = np.zeros(1, np.int64)
        try:
            copy = allocate_huge(size * packed.groups)
        except MemoryError:  # the plain way needs none
            self._is_impossible = True
            return False
        source, target = address(packed.data), address(copy)

        def part(groups: tuple[int, int]) -> None:
            self._kernels.shrink(source, packed.group_bytes, blocks, target, size, *groups, address(bad))

        self._shared(part, 0, packed.groups)
        if bad[0]:
            self._is_impossible = True
            return False
        self._bounds = allocate(4 * round_up(packed.groups, TILE)).view(np.float32)
        self._bounds[:] = -np.inf
        leaders = min(LEADERS, round_up(packed.groups, 8))
        own = LINE + (8 + 4 * GROUP) * leaders
        self._own = allocate(own * self._threads)
        self._nothing = np.full(GROUP, -np.inf, np.float32)
        memory = [address(self._bounds), address(self._own), own, leaders, packed.rows, address(self._nothing)]
        words[:] = [target, size, *memory]
        self._copy, self._copy_bytes = copy, size
        self._leave_rest()
        return True

    def _shared(self, part: Callable[[tuple[int, int]], None], first: int, last: int) -> None:
        """The work of groups ``first`` to ``last``, by all threads."""
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(part, self._shares(first, last)))

    def _shares(self, first: int, last: int) -> Iterable[tuple[int, int]]:
        return pairwise(first + (last - first) * i // self._threads for i in range(self._threads + 1))

    def _leave_rest(self) -> None:
        """Keep of the packed matrix only what the copy does not have, if nobody else reads it: from now on kernels read
        both. Raises KineticError if that was broken off: then neither is whole."""
        packed, blocks = self._output.packed, self._output.packed.width // BLOCK
        size, old = rest_bytes(blocks), packed.group_bytes
        try:
            rest = allocate_huge(size * packed.groups)
        except MemoryError:
            return
        data = self._store.give_up(self._output.weight)
        if data is None:
            return
        assert self._copy is not None
        places = address(data), old, blocks, address(self._copy), self._copy_bytes, address(rest), size
        self.is_broken = True
        # Whoever interrupts this thread waits for the other, which moves all of it.
        with ThreadPoolExecutor(1) as mover:
            mover.submit(self._move, data, places, rest, size).result()

    def _move(self, data: NDArray[np.uint8], places: tuple[int, ...], rest: NDArray[np.uint8], size: int) -> None:
        """Memory of the matrix is given back piece by piece, so that at no time much more is in use than in the end."""
        packed = self._output.packed
        old, step = packed.group_bytes, max(1, PIECE // packed.group_bytes)

        def part(groups: tuple[int, int]) -> None:
            self._kernels.leave_rest(*places, *groups)

        with ThreadPoolExecutor(self._threads) as pool:
            for first in range(0, packed.groups, step):
                last = min(first + step, packed.groups)
                list(pool.map(part, self._shares(first, last)))
                give_back(data[first * old : last * old])
        tiles = [self._kernels.tile(packed.fmt, SUFFIX + kind) for kind in (ONE, TWO, MANY)]
        rows = np.isin(self._code[:, 0], (tape.OUTPUT, tape.EXACT))
        self._code[rows, 2:7] = [*tiles, address(rest), size]
        self._rest = rest
        self.is_broken = False
