"""What this machine could do at most: the rooflines that benchmarks compare kernels with.

Measured by loops of our own (kinetic.backends.cpu.roof), compiled for the instruction set in use,
on as many threads as the kernels use. Other programs and the clock take part in every figure, so
what is compared with a kernel is measured right beside it, again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kinetic.backends.cpu.memory import address, allocate_huge
from kinetic.backends.cpu.roof import Chain, Loops, Pattern, read_size
from kinetic.errors import UsageError

PIECE = 256 << 20
"""Bytes that a round reads: several times a processor's caches."""

SECONDS = 0.01
"""A round of arithmetic takes about this long on each thread: long beside the start of a thread."""


class Peaks(NamedTuple):
    """Of one number of threads: bytes, and operations of int8 and float32, a second; a multiply-add is two."""

    threads: int
    read: float
    pattern: Pattern
    """How memory was read fastest."""
    int8: float | None
    """None where the instruction set has no products of bytes."""
    float32: float


class Meter:
    """Measures one round of a loop whenever it is asked. Holds ``size`` bytes of memory and some threads."""

    def __init__(self, isa: str, threads: int, size: int = PIECE) -> None:
        if threads < 1 or size < 1 << 16:
            raise UsageError("a roofline takes a thread at least, and 64 KiB", name="BAD_ROOFLINE")
        self.loops = Loops(isa)
        self._memory = allocate_huge(size)
        self._memory.fill(1)  # memory never written to is one page of zeros
        self._pool = ThreadPoolExecutor(threads)
        self._turns: dict[str, int] = {}

    def close(self) -> None:
        self._pool.shutdown()

    def read(self, threads: int, pattern: Pattern) -> float:
        """Bytes a second that ``threads`` read together, each its part of the memory."""
        part = len(self._memory) // threads // 64 * 64
        start, loop = address(self._memory), self.loops.read[pattern]
        seconds = self._together(threads, lambda i: loop(start + i * part, part))
        return threads * read_size(pattern, part) / seconds

    def int8(self, threads: int) -> float | None:
        return self._operations(threads, self.loops.int8) if self.loops.int8 else None

    def float32(self, threads: int) -> float:
        return self._operations(threads, self.loops.float32)

    def peaks(self, threads: int, rounds: int = 5) -> Peaks:
        """The best of some rounds. Ways to read take turns, so that a slow moment isn't one way's alone."""
        found = dict.fromkeys(self.loops.read, 0.0)
        for _ in range(rounds):
            for pattern in found:
                found[pattern] = max(found[pattern], self.read(threads, pattern))
        best = max(found, key=lambda pattern: found[pattern])
        int8 = max(self.int8(threads) or 0.0 for _ in range(rounds)) or None
        return Peaks(threads, found[best], best, int8, max(self.float32(threads) for _ in range(rounds)))

    def _operations(self, threads: int, chain: Chain) -> float:
        turns = self._turns.get(chain.name) or self._turns.setdefault(chain.name, _calibrated(chain))
        return threads * turns * chain.operations / self._together(threads, lambda i: chain.run(turns))

    def _together(self, threads: int, part: Callable[[int], int]) -> float:
        """Seconds until ``part(0)``, ``part(1)``... are done, on a thread each."""
        begin = time.perf_counter()
        others = [self._pool.submit(part, i) for i in range(1, threads)]
        part(0)
        for other in others:
            other.result()
        return time.perf_counter() - begin


def _calibrated(chain: Chain) -> int:
    """Turns that take about ``SECONDS``."""
    turns, least = 1000, float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        chain.run(turns)
        least = min(least, time.perf_counter() - begin)
    return max(turns, int(turns * SECONDS / least))
