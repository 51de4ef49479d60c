"""Work that threads claim (kinetic.backends.cpu.core_work): each unit once, whoever takes it."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from kinetic.backends.cpu import tape, target
from kinetic.backends.cpu.memory import address, allocate
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.workers import PASSES


class Work:
    """A program table with room for the claims of ``instructions``."""

    def __init__(self, threads: int, instructions: int = 3) -> None:
        self._kernels = Kernels(target.choose(), [])  # its code must stay loaded
        self.threads = threads
        self._claim = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(self._kernels.address("claim"))
        self._program = np.zeros(tape.FIRST_FREE, np.int64)
        self._code = np.zeros(instructions * tape.WORDS, np.int64)
        self.memory = allocate(64 * threads * instructions).view(np.int64)
        self._program[tape.CODE], self._program[tape.WORK] = address(self._code), address(self.memory)
        self._program[tape.PASS] = 1

    def next_pass(self, number: int | None = None) -> None:
        self._program[tape.PASS] = self._program[tape.PASS] + 1 if number is None else number

    def claim(self, thread: int, total: int, most: int, instruction: int = 0) -> range:
        place = address(self._code) + instruction * tape.INSTRUCTION
        got = self._claim(address(self._program), place, thread, self.threads, total, most)
        first, count = got >> tape.UNIT_BITS, got & tape.MOST_UNITS
        return range(first, first + count)

    def all_of(self, thread: int, total: int, most: int, instruction: int = 0) -> list[range]:
        out = []
        while claimed := self.claim(thread, total, most, instruction):
            out.append(claimed)
        return out


def units(claims):
    return [unit for claimed in claims for unit in claimed]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 2, 6, 7, 8, 64, 1000])
def test_one_thread_takes_all(threads, total):
    work = Work(threads)
    claims = work.all_of(threads - 1, total, 45)
    assert sorted(units(claims)) == list(range(total))
    assert max(map(len, claims), default=0) <= 45
    assert not work.claim(0, total, 45)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("most", [1, 4, 1 << 20])
def test_all_threads_at_once(threads, most):
    work = Work(threads)
    start = Barrier(threads)

    def take(thread):
        start.wait()
        return units(work.all_of(thread, 5000, most))

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            work.next_pass()
            taken = list(pool.map(take, range(threads)))
            assert sorted(unit for each in taken for unit in each) == list(range(5000))


def test_own_range_first_and_half_of_what_is_left():
    work = Work(2)
    assert work.claim(1, 40, 100) == range(20, 30)
    assert work.claim(1, 40, 3) == range(30, 33)
    assert work.claim(0, 40, 100) == range(10)
    rest = work.all_of(1, 40, 100)
    assert rest[0] == range(33, 37)
    assert rest[-1] == range(10, 11)  # of the other's range from the back
    assert sorted(units(rest)) == [*range(10, 20), *range(33, 40)]


def test_instructions_and_passes_do_not_meet():
    work = Work(2)
    assert len(units(work.all_of(0, 9, 4, instruction=1))) == 9
    assert len(units(work.all_of(0, 9, 4, instruction=2))) == 9
    assert not work.claim(1, 9, 4, instruction=1)
    work.next_pass()
    assert len(units(work.all_of(1, 9, 4, instruction=1))) == 9


def test_the_largest_numbers():
    work = Work(2)
    work.next_pass(PASSES - 1)
    work.memory[0] = (PASSES - 2) << (2 * tape.UNIT_BITS) | 5 << tape.UNIT_BITS | 1  # of the pass before
    total = tape.MOST_UNITS
    assert work.claim(0, total, 1) == range(1)
    assert work.claim(1, total, 2)[0] == total // 2
    assert len(units(work.all_of(0, total, 1 << 20))) == total - 3
