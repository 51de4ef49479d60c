"""What a program needs of a device, whichever language it speaks: memory, and launches in the order they are given."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Memory = Any
"""Bytes on the device."""

Kernel = Any


class Device(Protocol):
    """Everything that is asked for happens in order; only ``read`` waits for it."""

    kind: str
    """'opencl' or 'cuda'."""
    name: str

    def memory(self, size: int) -> Memory:
        """``size`` bytes, whatever they are. Raises OutOfMemory."""

    def upload(self, values: np.ndarray) -> Memory:
        """Memory that holds a contiguous array. Raises OutOfMemory."""

    def write(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        """Put a contiguous array at byte ``offset``; it may be changed as soon as this returns."""

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

    def finish(self) -> None:
        """Wait for what is under way."""
