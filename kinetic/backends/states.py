"""Recurrent states of the sequences of a program: where they lie, at which position they stand, marks to go back to.

One piece of memory for each sequence holds all of its states, one after another; a mark is a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Attention, Snapshot, State
from kinetic.bits import F32
from kinetic.errors import KineticError
from kinetic.types import Batch

MOST_MARKS = 8
"""Marks of one sequence, each as large as all of its states together."""

MARK_BYTES = 256 << 20
"""What the marks of one sequence may take; where states are larger than a half of it there are still two."""

LINE = 64
"""States begin at multiples of this many bytes."""

BROKEN = -1
"""The length of a sequence while a pass over its states is under way: they are at no position."""

U8 = NDArray[np.uint8]


def _zeros(size: int) -> U8:
    return np.zeros(size, np.uint8)


class _Mark(NamedTuple):
    length: int
    memory: U8


class StateStore:
    """``allocate(bytes)`` gives zeroed uint8. Without ``states`` it only counts positions."""

    def __init__(self, states: Sequence[State], allocate: Callable[[int], U8] = _zeros) -> None:
        self.states = tuple(states)
        self._allocate = allocate
        self._offsets: dict[State, int] = {}
        end = 0
        for state in self.states:
            self._offsets[state] = end
            end += (4 * state.size + LINE - 1) // LINE * LINE
        self.size = end
        """Bytes of the states of one sequence."""
        self.most_marks = max(2, min(MOST_MARKS, MARK_BYTES // max(1, end)))
        self._memory: dict[int, U8] = {}
        self._lengths: dict[int, int] = {}
        self._marks: dict[int, list[_Mark]] = {}
        self._spare: list[U8] = []  # at most as many pieces as one sequence has marks

    # ---- memory

    def offset(self, state: State) -> int:
        """Bytes from the start of a sequence's memory to this state."""
        if state not in self._offsets:
            raise KineticError(f"state '{state.name}' of layer {state.layer} was not announced to the backend")
        return self._offsets[state]

    def memory(self, sequence: int) -> U8:
        """All states of a sequence, uint8 [size]; anything before it has started."""
        if sequence not in self._memory:
            self._memory[sequence] = self._take()
        return self._memory[sequence]

    def to_read(self, sequence: int) -> U8:
        """The same memory, only to be read."""
        return self.memory(sequence)

    def to_fill(self, sequence: int) -> U8:
        """The same memory, to be written from end to end: what is in it does not matter."""
        return self.memory(sequence)

    def _take(self) -> U8:
        """Memory that may have been another sequence's or a mark's."""
        return self._spare.pop() if self._spare else self._allocate(self.size)

    def _give_back(self, memory: Iterable[U8]) -> None:
        self._spare += memory
        del self._spare[self.most_marks :]

    def view(self, sequence: int, state: State) -> F32:
        """One state, float32 of its shape, to read and to write."""
        return self._part(self.memory(sequence), state)

    def _part(self, memory: U8, state: State) -> F32:
        start = self.offset(state)
        return memory[start : start + 4 * state.size].view(np.float32).reshape(state.shape)

    # ---- passes

    def length(self, sequence: int) -> int:
        """Positions that the sequence has."""
        return max(0, self._lengths.get(sequence, 0))

    def check(self, batch: Batch) -> dict[int, int]:
        """Where each sequence will stand after a batch. Raises KineticError if its states are not where it begins."""
        return ends_of(batch, self.length, has_states=bool(self.states))

    def begin(self, batch: Batch) -> dict[int, int]:
        """Before a pass: states of those that start anew are zeroed. Returns what ``end`` wants."""
        ends = self.check(batch)
        starts = dict(zip(reversed(batch.sequences), reversed(batch.positions), strict=True))
        for sequence, start in starts.items():
            if start == 0:
                self._start(sequence)
            self._lengths[sequence] = BROKEN if self.states else start
        return ends

    def _start(self, sequence: int) -> None:
        self._drop(self._marks.get(sequence, []), 0, self.most_marks)
        if self.states:
            self.to_fill(sequence)[:] = 0

    def end(self, ends: dict[int, int]) -> None:
        """After a pass that was not broken off."""
        self._lengths.update(ends)

    # ---- the way back

    def mark(self, sequence: int) -> None:
        """See ``base.Program.mark``."""
        length = self.length(sequence)
        marks = self._marks.setdefault(sequence, [])
        if not self.states or length == 0 or (marks and marks[-1].length == length):
            return
        if len(marks) == self.most_marks:
            self._drop(marks, _superfluous([mark.length for mark in marks] + [length]))
        copy = self._take()
        copy[:] = self.to_read(sequence)
        marks.append(_Mark(length, copy))

    def _drop(self, marks: list[_Mark], first: int, count: int = 1) -> None:
        self._give_back(mark.memory for mark in marks[first : first + count])
        del marks[first : first + count]

    def truncate(self, sequence: int, length: int) -> int:
        """See ``base.Program.truncate``."""
        now = self._lengths.get(sequence, 0)
        if 0 < now <= length:
            return now
        if not self.states and length > 0:
            self._lengths[sequence] = min(max(now, 0), length)
            return self._lengths[sequence]
        marks = self._marks.get(sequence, [])
        usable = sum(mark.length <= length for mark in marks)  # exact: integers
        self._drop(marks, usable, len(marks))
        if not marks:
            self.forget(sequence)
            return 0
        self.to_fill(sequence)[:] = marks[-1].memory
        self._lengths[sequence] = marks[-1].length
        return marks[-1].length

    def fork(self, target: int, length: int) -> None:
        """See ``base.Program.fork``: only for programs without states."""
        if self.states:
            raise KineticError("a sequence with recurrent states can't be forked")
        self._lengths[target] = length

    def take_over(self, source: int, target: int) -> None:
        """See ``base.Program.take_over``."""
        self._lengths[target] = self._lengths.pop(source)

    def forget(self, sequence: int) -> None:
        """All that is known of it."""
        self._drop(self._marks.pop(sequence, []), 0, self.most_marks)
        self._lengths.pop(sequence, None)
        if sequence in self._memory:
            self._give_back([self._memory.pop(sequence)])

    # ---- snapshots

    def copy(self, sequence: int) -> U8:
        """All states of a sequence, as ``stand`` takes them."""
        return self.to_read(sequence).copy() if self.states else _zeros(0)

    def stand(self, sequence: int, length: int, memory: U8 | None) -> None:
        """See ``base.Program.stand``. Raises KineticError if these are states of another size."""
        size = 0 if memory is None else len(memory)
        if size != self.size:
            message = f"states of {size} bytes are not this model's, which take {self.size}"
            raise KineticError(message, name="WRONG_SNAPSHOT")
        self.forget(sequence)
        if memory is not None and self.states:
            self.to_fill(sequence)[:] = memory
        self._lengths[sequence] = length
        self.mark(sequence)

    def copies(self, sequence: int) -> dict[State, F32]:
        """Copies of all states of a sequence."""
        if self.length(sequence) == 0:
            return {state: np.zeros(state.shape, np.float32) for state in self.states}
        memory = self.to_read(sequence) if self.states else _zeros(0)
        return {state: self._part(memory, state).copy() for state in self.states}

    def put(self, sequence: int, length: int, states: Mapping[State, F32]) -> None:
        """Makes the sequence stand at ``length`` with these states; KineticError if they are of another model."""
        if set(states) != set(self.states) or any(states[s].shape != s.shape for s in self.states):
            raise KineticError("this snapshot was taken of a model with other states", name="WRONG_SNAPSHOT")
        self.forget(sequence)
        if length == 0:
            return
        for state, values in states.items():
            self.view(sequence, state)[:] = values
        self._lengths[sequence] = length
        self.mark(sequence)


def _superfluous(lengths: list[int]) -> int:
    """Which mark to drop, neither the first nor the last: its neighbours are closest together for its age."""
    last = lengths[-1]
    inner = range(1, len(lengths) - 1)
    return max(inner, key=lambda i: (last - lengths[i]) / (lengths[i + 1] - lengths[i - 1]))


def ends_of(batch: Batch, length: Callable[[int], int], *, has_states: bool) -> dict[int, int]:
    """Where each sequence will stand after a batch, now having ``length(sequence)`` positions. Raises KineticError
    where ``has_states`` and they are not where the batch begins."""
    ends: dict[int, int] = {}
    for sequence, position in zip(batch.sequences, batch.positions, strict=True):
        expected = ends.get(sequence, position if position == 0 else length(sequence))
        if has_states and position != expected:
            raise KineticError(
                f"position {position} of sequence {sequence} can't be computed: its states are at {expected}",
                name="WRONG_POSITION",
            )
        ends[sequence] = position + 1
    if has_states and any(batch.also):
        raise KineticError("a row can't be part of several sequences that have recurrent states")
    for others, position in zip(batch.also, batch.positions, strict=bool(batch.also)):
        for other in others:  # whose own rows may lie behind this one
            ends[other] = max(ends.get(other, 0), position + 1)
    return ends


def check_snapshot(snapshot: Snapshot, layers: Sequence[Attention]) -> None:
    """Raises KineticError if the keys and values are not those of these layers."""
    for spec in layers:
        for kept, width in ((snapshot.keys, spec.head_dim), (snapshot.values, spec.value_width)):
            shape = (snapshot.length, spec.kv_heads, width)
            if spec.layer not in kept or kept[spec.layer].shape != shape:
                raise KineticError("this snapshot was taken of a model with other layers", name="WRONG_SNAPSHOT")
