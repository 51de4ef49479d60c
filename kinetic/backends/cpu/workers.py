"""Persistent worker threads. Between passes they spin briefly in native code, then wait in Python."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.memory import address, allocate
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.system import yield_address
from kinetic.errors import KineticError, OutOfMemory

IDLE_SPINS = 20_000
"""About 0.3 ms: longer than sampling a token takes, so workers are awake when the next pass starts."""

PASSES = 1 << (63 - 2 * tape.UNIT_BITS)
"""Numbers of passes begin anew here: what is left of a word of WORK."""


class Workers:
    """Runs a program table on ``threads`` threads, the caller's among them."""

    def __init__(self, kernels: Kernels, program: NDArray[np.int64], threads: int) -> None:
        self._kernels, self._program, self._threads = kernels, program, threads
        self._memory = allocate(tape.SLEEPING + 64 * threads)
        self._sync = self._memory.view(np.int64)
        program[tape.SYNC] = address(self._memory)
        self._sync[tape.YIELD // 8] = yield_address()
        self._work = allocate(64 * threads * int(program[tape.LENGTH])).view(np.int64)
        program[tape.WORK] = address(self._work)
        self._events = [threading.Event() for _ in range(threads)]
        self._handles: list[threading.Thread] = []

    def run(self) -> None:
        """One pass; returns when every thread has finished it."""
        if self._sync[tape.STOP // 8]:
            raise KineticError("this program is closed", name="CLOSED")
        table = address(self._program)
        self._new_pass()
        if self._threads > 1:
            if not self._handles:
                self._spawn()
            started = self._sync[tape.START // 8]
            try:
                self._kernels.start(table)
                self._wake()
            except BaseException:
                # Interrupted when the others had begun: they would wait for this thread, and a later pass
                # would meet them halfway through this one.
                if self._sync[tape.START // 8] != started:
                    self._wake()
                    self._kernels.run_tape(table, 0, self._threads)
                raise
        self._kernels.run_tape(table, 0, self._threads)

    def _new_pass(self) -> None:
        """Makes what is written in WORK old."""
        self._program[tape.PASS] += 1
        if self._program[tape.PASS] >= PASSES:
            self._work[:] = 0
            self._program[tape.PASS] = 1

    def close(self) -> None:
        self._sync[tape.STOP // 8] = 1
        for event in self._events:
            event.set()
        for handle in self._handles:
            handle.join()
        self._handles = []

    def _spawn(self) -> None:
        try:
            for index in range(1, self._threads):
                handle = threading.Thread(target=self._serve, args=(index,), daemon=True, name=f"kinetic-{index}")
                handle.start()
                self._handles.append(handle)
        except RuntimeError as error:
            self.close()  # too few threads would wait for the missing ones for ever
            raise OutOfMemory(f"the system refuses to start {self._threads} threads; use fewer (-t)") from error

    def _wake(self) -> None:
        for index in range(1, self._threads):
            if self._sync[(tape.SLEEPING + 64 * index) // 8]:
                self._events[index].set()

    def _serve(self, index: int) -> None:
        table = address(self._program)
        while not self._sync[tape.STOP // 8]:
            self._kernels.work(table, index, self._threads, IDLE_SPINS)
            if self._sync[tape.STOP // 8]:
                return
            self._events[index].wait()
            self._events[index].clear()
