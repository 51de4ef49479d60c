"""OpenCL devices that watch what kernels do with their memory, and that run them with other numbers of lanes.

PoCL's memory is the process's own, so that what lies around a piece can be seen without asking the device.
"""

from __future__ import annotations

import re
import weakref

import numpy as np
import pyopencl as cl

from kinetic.backends.gpu import opencl

GUARD = 512
"""Bytes before and behind each piece of memory, a multiple of any alignment."""

UNWRITTEN = 0xFF
"""Of guards and of fresh memory: NaN as float32 and float16, -1 as an integer."""

LARGEST = 1 << 30
"""Bytes of a piece that is watched: tests ask for more than there is, too."""


class OutOfBounds(AssertionError):
    """A kernel wrote beside memory that it was given."""


class Watched(opencl.Device):
    """Fresh memory is NaN, so that what is read before it is written shows; ``launch`` fails if a kernel has written
    beside its arguments, ``read`` and ``finish`` if anything has beside anything."""

    def __init__(self, device: cl.Device) -> None:
        self._rooms: list[tuple[weakref.ref, int, int]] = []
        super().__init__(device)

    def memory(self, size: int) -> cl.Buffer:
        if size > LARGEST:
            return super().memory(size)
        whole = np.full(max(size, 1) + 3 * GUARD, UNWRITTEN, np.uint8)
        start = -whole.ctypes.data % GUARD + GUARD
        self._rooms.append((weakref.ref(whole), start, start + max(size, 1)))
        self.allocations = getattr(self, "allocations", 0) + 1
        part = whole[start : start + max(size, 1)]
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=part)

    def copy(self, target: cl.Buffer, source: cl.Buffer, size: int) -> None:
        super().copy(target, source, size)
        self._queue.finish()  # what is copied may be given up next, and is the process's own memory

    def launch(self, kernel: cl.Kernel, groups: int, lanes: int, *arguments: object) -> None:
        super().launch(kernel, groups, lanes, *arguments)
        self._queue.finish()
        given = {
            id(value.hostbuf.base)
            for value in arguments
            if isinstance(value, cl.MemoryObject) and value.hostbuf is not None
        }
        self._check(f"kernel {kernel.function_name} has written", given)

    def read(self, memory: cl.Buffer, values: np.ndarray, offset: int = 0) -> None:
        super().read(memory, values, offset)
        self._check("something has written")

    def finish(self) -> None:
        super().finish()
        self._check("something has written")

    def _check(self, who: str, among: set[int] | None = None) -> None:
        alive = []
        for room in self._rooms:
            whole = room[0]()
            if whole is None:
                continue
            alive.append(room)
            _, start, end = room
            if among is None or id(whole) in among:
                for side, guard in (("before", whole[start - GUARD : start]), ("behind", whole[end : end + GUARD])):
                    if not (guard == UNWRITTEN).all():
                        places = np.flatnonzero(guard != UNWRITTEN)
                        raise OutOfBounds(f"{who} {side} memory of {end - start} bytes, at {places[:4].tolist()}")
        self._rooms = alive


class OtherLanes(opencl.Device):
    """Kernels run with ``lanes`` lanes a group instead of as many as were asked for.

    One that says how many it has room for (MAX_LANES) gets no more; where lanes own elements, there are as many more
    groups as it takes. A kernel of one lane keeps it.
    """

    def __init__(self, device: cl.Device, lanes: int) -> None:
        self._lanes = 0
        self._texts: dict[int, str] = {}
        super().__init__(device)
        self._lanes = lanes
        self.launched: set[tuple[str, int]] = set()

    def kernel(self, source: str, name: str) -> cl.Kernel:
        kernel = super().kernel(source, name)
        self._texts[id(kernel)] = source
        return kernel

    def launch(self, kernel: cl.Kernel, groups: int, lanes: int, *arguments: object) -> None:
        text, name = self._texts.get(id(kernel), ""), kernel.function_name
        if self._lanes and text and lanes > 1:
            own = min(self._lanes, *(int(most) for most in re.findall(r"#define MAX_LANES (\d+)", text)), self._lanes)
            if re.search(r"GROUP \* \(?LANES|\bELEMENT\b", body(text, name)):
                groups = -(-groups * lanes // own)
            lanes = own
            self.launched.add((name, lanes))
        super().launch(kernel, groups, lanes, *arguments)


def body(text: str, name: str) -> str:
    """The text of a kernel between its braces."""
    (found,) = re.findall(rf"^KERNEL void {name}\(.*?^}}", text, re.MULTILINE | re.DOTALL)
    return found
