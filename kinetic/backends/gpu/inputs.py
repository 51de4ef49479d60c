"""Arrays that a pass reads: they lie side by side, so that one transfer brings them to the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.gpu.device import Device, Memory

Shape = tuple[tuple[int, ...], type]
"""Of an array, and the type of its elements."""

MOST_LAYOUTS = 64


@dataclass(eq=False)
class Layout:
    """Where the arrays of passes of one shape lie: on the host, to be filled, and on the device. It is one object as
    long as none of them moves."""

    host: dict[str, np.ndarray]
    memory: dict[str, Memory]
    size: int
    """Bytes of all together."""
    passes: int = 0
    """Passes of this shape that were run to the end."""


class Inputs:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._host: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._memory: Memory = None
        self._layouts: dict[tuple[tuple[str, Shape], ...], Layout] = {}
        self._under_way = False

    def lay(self, arrays: dict[str, Shape]) -> Layout:
        """Room for arrays of these shapes. What is in it is of an earlier pass."""
        if self._under_way:  # a pass that nothing was read of
            self._device.finish()
            self._under_way = False
        key = tuple(arrays.items())
        if key not in self._layouts:
            made = self._made(arrays)  # may drop the others
            while len(self._layouts) >= MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = made
        return self._layouts[key]

    def _made(self, arrays: dict[str, Shape]) -> Layout:
        places, end, step = {}, 0, self._device.alignment
        for name, (shape, kind) in arrays.items():
            size = math.prod(shape) * np.dtype(kind).itemsize  # exact: integers
            places[name] = end, size
            end += max(1, -(-size // step)) * step
        if end > len(self._host):
            self._layouts.clear()
            room = max(end, 2 * len(self._host))
            self._host, self._memory = np.zeros(0, np.uint8), None
            self._memory, self._host = self._device.memory(room), self._device.pinned(room)
        host: dict[str, np.ndarray] = {}
        for name, (shape, kind) in arrays.items():
            first, size = places[name]
            host[name] = self._host[first : first + size].view(kind).reshape(shape)
        memory = {name: self._device.part(self._memory, first, max(1, size)) for name, (first, size) in places.items()}
        return Layout(host, memory, end)

    def send(self, layout: Layout) -> None:
        """Bring what is on the host to the device."""
        self._under_way = True
        self._device.send(self._memory, self._host[: layout.size])

    def arrived(self) -> None:
        """Something was read since."""
        self._under_way = False
