"""Which instructions need a barrier before them: who read and wrote which buffer since the last one.

A pass is of one of four kinds (``tape.MODES``), and what threads share differs between them; a barrier
names the kinds that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.memory import address


@dataclass(eq=False)
class Buffer:
    """Memory of one activation for ``capacity`` rows. ``stride`` is the bytes of a row, 0 for records."""

    data: NDArray[np.uint8]
    stride: int = 0

    @property
    def address(self) -> int:
        return address(self.data)


Partition = tuple[object, ...] | None
"""How an instruction divides a buffer among threads. Equal partitions give every thread the same part,
so one may follow the other without a barrier. None: any thread may touch any part."""


class By(NamedTuple):
    """A partition that is another one in a pass of one row."""

    many: Partition
    one: Partition


OWN = ("own copy",)
"""In a pass of one row each thread has its own copy."""

Touch = tuple[Buffer, Partition | By]
Places = list[tuple[Buffer, Partition]]

ALL_MODES = tuple(range(tape.MODES))


class Touched:
    """What was touched since the last barrier of each kind of pass."""

    def __init__(self) -> None:
        self._seen = [_Seen() for _ in ALL_MODES]

    def waiting(self, modes: Sequence[int], reads: Sequence[Touch], writes: Sequence[Touch]) -> int:
        """Notes what the next instruction touches in ``modes``: the set of those that need a barrier first, as bits."""
        out = 0
        for mode in modes:
            if self._seen[mode].touch(_in_mode(reads, mode), _in_mode(writes, mode)):
                out |= 1 << mode
        return out


class _Seen:
    """What was read and written since the last barrier, and by whom."""

    def __init__(self) -> None:
        self._reads: dict[Buffer, set[Partition]] = {}
        self._writes: dict[Buffer, set[Partition]] = {}

    def touch(self, reads: Places, writes: Places) -> bool:
        """Whether these need a barrier before them."""
        waits = _clash(self._writes, [*reads, *writes]) or _clash(self._reads, writes)
        if waits:
            self._reads, self._writes = {}, {}
        for seen, touched in ((self._reads, reads), (self._writes, writes)):
            for buffer, partition in touched:
                seen.setdefault(buffer, set()).add(partition)
        return waits


def _in_mode(touches: Sequence[Touch], mode: int) -> Places:
    one = bool(mode & tape.ONE_ROW)
    return [(buffer, part[one] if isinstance(part, By) else part) for buffer, part in touches]


def _clash(seen: dict[Buffer, set[Partition]], touched: Places) -> bool:
    return any(
        partition is None or other is None or partition != other
        for buffer, partition in touched
        for other in seen.get(buffer, ())
    )
