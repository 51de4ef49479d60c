"""Makes sequence 0 of a program begin as a prompt does, with as little computed anew as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kinetic.backends.base import CHUNK
from kinetic.engine.warm.blocks import NOTHING, ROOT, U8, Block, Contents, Store, Way, blocks_of, common, longest_way
from kinetic.engine.warm.disk import DiskStore
from kinetic.engine.warm.memory import MemoryStore

if TYPE_CHECKING:
    from kinetic.backends.base import Program

WORTH = 32
"""Positions: fewer are computed rather than copied."""

LEAST = 256
"""Positions: shorter sequences are in no file."""

EVERY = 2 * CHUNK
"""Recurrent states of a prompt are kept at multiples of it."""

BEFORE_END, GRID = 8, 16
"""And at the last multiple of GRID so many tokens before its end: what follows an answer often differs there."""

TRIES = 8
"""Files may turn out to be damaged."""


class Warm:
    """Not thread-safe. Whoever runs sequence 0 without ``begin`` says ``forget`` before.

    ``limit`` in bytes is for what is set aside in memory; the live sequence and ``disk`` have their own.
    """

    def __init__(self, program: Program, limit: int, disk: DiskStore | None = None) -> None:
        self._program, self.memory, self.disk = program, MemoryStore(limit), disk
        self._key = disk.name_key if disk else ROOT
        self._has_states = program.state_bytes > 0
        self._most = max(2, limit // 4 // max(1, program.state_bytes))
        self._live: tuple[int, ...] = ()
        self._states: dict[int, U8] = {}

    # ---- one run

    def begin(self, tokens: Sequence[int]) -> int:
        """Makes sequence 0 hold as many of ``tokens`` as it can without computing, but for the last one, whose row is
        wanted. Returns how many those are. Until ``settle`` nothing is known of the sequence."""
        wanted, live = tuple(tokens[:-1]), self._live
        if self._program.length(0) != len(live):
            live = ()
        self._live = ()
        here = self._reach(live, common(live, wanted))
        far = len(wanted) - here >= WORTH
        for _ in range(TRIES):
            way = self._find(wanted, here) if far else NOTHING
            if way.length < here + WORTH:
                break
            self._set_aside(live)
            live, here = (), 0
            if found := self._restore(way):
                return found
        if len(live) - here >= WORTH:
            self._set_aside(live)
        self._go_back(len(live), here)
        return here

    def ends(self, start: int, total: int, rows: int, *, at_end: bool = False) -> Iterator[int]:
        """Where the passes over a prompt end, ``rows`` at most in each: between two of them states are kept, and
        ``at_end`` behind the last."""
        stops = [total]
        if self._has_states:
            last = (total - BEFORE_END) // GRID * GRID
            stops = sorted({stop for stop in (*range(EVERY, total, EVERY), last, total) if stop > start})
        for stop in stops:
            while start < stop:
                start = min(start + rows, stop)
                yield start
            if self._has_states and (stop < total or at_end):
                self._keep_states(stop)

    def settle(self, tokens: Sequence[int]) -> None:
        """A run is over: what the sequence holds are the first of ``tokens``."""
        length = self._program.length(0)
        self._live = tuple(tokens[:length])
        self._states = {end: states for end, states in self._states.items() if end <= length}

    def keep(self) -> None:
        """Have what the sequence holds written to a file, beside what comes next."""
        if self.disk and len(self._live) >= LEAST:
            self.disk.look()
            for block, states in self._blocks(self._live):
                self.disk.offer(block, None if self.disk.has(block) else self._contents(block, states))
            self.disk.end_of_chain()

    def forget(self) -> None:
        """Somebody else uses the sequence from now on."""
        self._live, self._states = (), {}

    def close(self) -> None:
        if self.disk:
            self.disk.close()

    # ---- the live sequence

    def _reach(self, live: Sequence[int], length: int) -> int:
        """The last position at or before ``length`` that the sequence can go back to without computing anything."""
        if not self._has_states or length == len(live):
            return length
        return max((end for end in self._states if end <= length), default=0)

    def _go_back(self, now: int, length: int) -> None:
        if self._has_states and 0 < length < now:
            self._program.stand(0, length, self._states[length])
        else:
            self._program.truncate(0, length)
        self._states = {end: states for end, states in self._states.items() if end <= length}

    def _keep_states(self, length: int) -> None:
        """At most so many copies, the closer together the later they are."""
        if self._program.length(0) != length:
            return
        self._states[length] = self._program.read_states(0)
        while len(self._states) > self._most:
            ends = sorted(self._states)
            gaps = {ends[i]: ends[i + 1] - ends[i - 1] for i in range(1, len(ends) - 1)}
            del self._states[min(gaps, key=lambda end: gaps[end]) if gaps else ends[0]]

    # ---- blocks

    def _blocks(self, live: Sequence[int]) -> list[tuple[Block, U8 | None]]:
        if not self._has_states:
            return blocks_of(live, None, self._key)
        states = dict(self._states)
        if self._program.length(0) == len(live):
            states[len(live)] = self._program.read_states(0)
        return blocks_of(live, states, self._key)

    def _contents(self, block: Block, states: U8 | None) -> Contents:
        return Contents(self._program.read_kept(0, block.start, len(block.tokens)), states)

    def _set_aside(self, live: Sequence[int]) -> None:
        """Copies what memory does not have yet. The end of a chain is forgotten first, so it is used first."""
        if len(live) < WORTH or not self.memory.limit:
            return
        blocks, size = self._blocks(live), 0
        for block, states in blocks:
            size += self._program.kept_bytes(len(block.tokens)) + (0 if states is None else states.nbytes)
            if size > self.memory.limit:
                break
            if not self.memory.has(block):
                self.memory.put(block, self._contents(block, states))
        for block, _ in reversed(blocks):
            self.memory.use(block)

    def _find(self, wanted: Sequence[int], here: int) -> Way:
        stores: list[Store] = [self.memory]
        way = longest_way(stores, wanted, self._key, with_states=self._has_states)
        if self.disk and len(wanted) - max(here, way.length) >= WORTH:
            self.disk.look()
            way = longest_way([*stores, self.disk], wanted, self._key, with_states=self._has_states)
        return way

    def _restore(self, way: Way) -> int:
        """How many positions the sequence then has: fewer than the way if a file was damaged."""
        self._program.truncate(0, 0)
        self._states, done = {}, 0
        states: U8 | None = None
        for number, entry in enumerate(way.entries):
            contents = entry.load()
            if contents is None:
                break
            self._program.write_kept(0, number * CHUNK, entry.count, contents.kept)
            done, states = min(way.length, number * CHUNK + entry.count), contents.states
        if self._has_states and done < way.length:
            done = 0
        if done == 0:
            self._program.truncate(0, 0)
            return 0
        self._program.stand(0, done, states if self._has_states else None)
        if self._has_states and states is not None:
            self._states[done] = states
        if self.disk:
            self.disk.used(way.entries)
        return done
