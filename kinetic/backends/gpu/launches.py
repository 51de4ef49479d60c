"""Launches of kernels, and memory that is used again from launch to launch."""

from __future__ import annotations

import numpy as np

from kinetic.backends.gpu.device import Device, Kernel, Memory
from kinetic.backends.gpu.source import kernel_source

LANES = 64
"""Lanes of a group. Their number never changes a bit."""


class Launches:
    def __init__(self, device: Device) -> None:
        self.device = device
        self._scratch: dict[str, tuple[int, Memory]] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}

    def each(self, file: str, name: str, count: int, *arguments: Memory | np.generic) -> None:
        """A kernel whose lanes own one element each, and whose last argument is how many there are."""
        if count:
            self.groups(file, name, -(-count // LANES), *arguments, np.int32(count))

    def groups(self, file: str, name: str, count: int, *arguments: Memory | np.generic, lanes: int = LANES) -> None:
        """A kernel of kernels/``file``.cu whose groups own something each."""
        if count:
            if (file, name) not in self._kernels:
                self._kernels[file, name] = self.device.kernel(kernel_source(file), name)
            self.device.launch(self._kernels[file, name], count, lanes, *arguments)

    def scratch(self, name: str, size: int) -> Memory:
        """``size`` bytes or more, which hold something until the same name is asked for again."""
        if self._scratch.get(name, (0, None))[0] < size:
            self._scratch.pop(name, None)  # given back before there is more
            self._scratch[name] = size, self.device.memory(size)
        return self._scratch[name][1]
