"""What programs of every device do alike: their sequences, which are positions, pages and recurrent states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Attention, Snapshot
from kinetic.backends.states import StateStore, check_snapshot

F16 = NDArray[np.float16]
U8 = NDArray[np.uint8]


class KeysAndValues(Protocol):
    """The keys and values of all sequences. What it is asked for is there."""

    def truncate(self, sequence: int, length: int) -> None: ...

    def read(self, sequence: int, length: int) -> tuple[Mapping[int, F16], Mapping[int, F16]]:
        """Copies of the first ``length`` keys and values by layer, float16 [length, G, their width]."""

    def write(self, sequence: int, length: int, keys: Mapping[int, F16], values: Mapping[int, F16]) -> None:
        """Makes what ``read`` gave all that a sequence has."""

    def kept_bytes(self, count: int) -> int: ...

    def read_block(self, sequence: int, start: int, count: int) -> U8:
        """See ``base.Program.read_kept``."""

    def write_block(self, sequence: int, start: int, count: int, data: U8) -> None:
        """See ``base.Program.write_kept``."""

    def fork(self, source: int, target: int, length: int) -> None: ...

    def take_over(self, source: int, target: int) -> None: ...


Kept = TypeVar("Kept", bound=KeysAndValues)


class Sequences(Generic[Kept]):
    """The part of ``base.Program`` that is about sequences; the docstrings are there."""

    can_keep = True

    def __init__(self, layers: Sequence[Attention], pages: Kept, states: StateStore) -> None:
        self._layers, self._pages, self._states = layers, pages, states

    @property
    def can_branch(self) -> bool:
        return not self._states.states

    def length(self, sequence: int) -> int:
        return self._states.length(sequence)

    def truncate(self, sequence: int, length: int) -> int:
        left = self._states.truncate(sequence, length)
        self._pages.truncate(sequence, left)
        return left

    def mark(self, sequence: int) -> None:
        self._states.mark(sequence)

    def snapshot(self, sequence: int) -> Snapshot:
        length = self.length(sequence)
        return Snapshot(length, *self._pages.read(sequence, length), self._states.copies(sequence))

    def restore(self, sequence: int, snapshot: Snapshot) -> None:
        check_snapshot(snapshot, self._layers)
        self._states.put(sequence, snapshot.length, snapshot.states)
        try:
            self._pages.write(sequence, snapshot.length, snapshot.keys, snapshot.values)
        except BaseException:  # it has none of the positions that it would say it has
            self.truncate(sequence, 0)
            raise

    @property
    def state_bytes(self) -> int:
        return self._states.size

    def kept_bytes(self, count: int) -> int:
        return self._pages.kept_bytes(count)

    def read_kept(self, sequence: int, start: int, count: int) -> U8:
        return self._pages.read_block(sequence, start, count)

    def write_kept(self, sequence: int, start: int, count: int, data: U8) -> None:
        self._pages.write_block(sequence, start, count, data)

    def read_states(self, sequence: int) -> U8:
        return self._states.copy(sequence)

    def stand(self, sequence: int, length: int, states: U8 | None = None) -> None:
        self._states.stand(sequence, length, states)
        self._pages.truncate(sequence, length)

    def fork(self, source: int, target: int, length: int) -> None:
        self._states.fork(target, length)
        try:
            self._pages.fork(source, target, length)
        except BaseException:
            self.truncate(target, 0)
            raise

    def take_over(self, source: int, target: int) -> None:
        self._states.take_over(source, target)
        self._pages.take_over(source, target)
