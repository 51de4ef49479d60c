"""What a program needs of a device, whichever language it speaks: memory, and launches in the order they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Memory = Any
"""Bytes on the device."""

Kernel = Any

Recording = Any
"""Launches and copies that a device runs again by itself."""


class Device(Protocol):
    """Everything that is asked for happens in order; only ``read`` and ``finish`` wait for it.

    Whatever is asked for raises OutOfMemory where the device has none left, and KineticError if it fails otherwise.
    """

    kind: str
    """'opencl' or 'cuda'."""
    name: str
    alignment: int
    """Bytes: parts of memory begin at multiples of it."""
    allocations: int
    """How often memory was taken. While that stays, so does the memory of what was launched (``record``)."""

    def memory(self, size: int) -> Memory:
        """``size`` bytes, whatever they are. Raises OutOfMemory."""

    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        """Those bytes of ``memory``, in place; ``offset`` is a multiple of ``alignment``."""

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """``size`` bytes of the host that a device reaches without a copy in between."""

    def upload(self, values: np.ndarray) -> Memory:
        """Memory that holds a contiguous array. Raises OutOfMemory."""

    def write(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        """Put a contiguous array at byte ``offset``; it may be changed as soon as this returns."""

    def send(self, memory: Memory, values: NDArray[np.uint8]) -> None:
        """Put ``values``, of ``pinned``, at the start of ``memory``. They must stay as they are until a ``read`` or
        ``finish`` after this returns."""

    def read(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        """Fill a contiguous array from byte ``offset``, when all that was asked for before is done."""

    def copy(self, target: Memory, source: Memory, size: int) -> None:
        """The first ``size`` bytes, on the device."""

    def free_memory(self) -> int:
        """Bytes that are left, as far as the driver tells; else all that it has."""

    def kernel(self, source: str, name: str) -> Kernel:
        """Kernel ``name`` of this text, built once. Raises KineticError if it can't be built."""

    def launch(self, kernel: Kernel, groups: int, lanes: int, *arguments: Memory | np.generic) -> None:
        """``groups`` groups of ``lanes`` lanes each. Scalars are NumPy's, of the kernel's types."""

    def record(self, work: Callable[[], None]) -> Recording | None:
        """What ``work`` asks for, launches and copies only, is not done but kept. None where that is not possible.

        A recording holds no memory: it may be replayed as long as ``allocations`` is what it was."""

    def replay(self, recording: Recording) -> None:
        """Do all of it, with what is in the memory now."""

    def finish(self) -> None:
        """Wait for what is under way."""
