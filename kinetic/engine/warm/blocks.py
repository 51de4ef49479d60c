"""Blocks of positions: their names, and the longest way of them along a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import blake3
import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK

U8 = NDArray[np.uint8]

ROOT = bytes(32)
"""The name of what stands before the first block."""


class Block(NamedTuple):
    """Positions from ``start``, a multiple of CHUNK, on: CHUNK of them at most. What stands before them is named
    ``parent``. ``name`` is a digest of that and of the tokens, so it stands for all tokens up to here."""

    parent: bytes
    name: bytes
    start: int
    tokens: tuple[int, ...]
    has_states: bool
    """Whether the recurrent states at its end are there."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Contents(NamedTuple):
    """Keys and values as ``Program.read_kept`` gives them, and states as ``read_states`` does."""

    kept: U8
    states: U8 | None


class Entry(Protocol):
    """A block that a store has."""

    count: int
    has_states: bool

    def is_named(self, name: bytes) -> bool:
        """Whether its block has this name."""

    def tokens(self) -> tuple[int, ...]:
        """() if they can't be read. Nothing vouches for them before ``load`` has succeeded."""

    def load(self) -> Contents | None:
        """None if it turns out to be none of ours. The store then has it no longer. Keys and values hold until the next
        one is loaded."""


class Store(Protocol):
    def children(self, parent: bytes) -> Iterable[Entry]:
        """The blocks behind that one."""


class Way(NamedTuple):
    """Blocks that follow one another, and how many positions of them are those of the prompt. All of them but for
    the last, which may go on differently."""

    entries: tuple[Entry, ...]
    length: int


NOTHING = Way((), 0)


def name_of(parent: bytes, tokens: Sequence[int], key: bytes) -> bytes:
    """32 bytes, which nobody can tell or find tokens for without the key."""
    data = parent + len(tokens).to_bytes(4, "little") + np.array(tokens, "<u4").tobytes()
    return bytes(blake3.blake3(data, key=key).digest())


def blocks_of(tokens: Sequence[int], states: Mapping[int, U8] | None, key: bytes) -> list[tuple[Block, U8 | None]]:
    """What there is to keep of a sequence, in order. ``states`` are those known, by length; None: there are none.

    With states, a block that is not full is worth keeping only if they are known at its end.
    """
    found: list[tuple[Block, U8 | None]] = []
    parent = ROOT
    for start in range(0, len(tokens), CHUNK):
        piece = tuple(tokens[start : start + CHUNK])
        ends = [] if states is None else [end for end in sorted(states) if start < end < start + len(piece)]
        for end in (*ends, start + len(piece)):
            part = piece[: end - start]
            name = name_of(parent, part, key)
            known = None if states is None else states.get(end)
            if len(part) == CHUNK or known is not None or states is None:
                found.append((Block(parent, name, start, part, known is not None), known))
        parent = name
    return found


def longest_way(stores: Sequence[Store], tokens: Sequence[int], key: bytes, *, with_states: bool) -> Way:
    """The longest beginning of ``tokens`` that the stores have; with states, that can be gone on from."""
    best, path, parent = NOTHING, tuple[Entry, ...](), ROOT
    for start in range(0, len(tokens), CHUNK):
        rest = tuple(tokens[start : start + CHUNK])
        whole = name_of(parent, rest, key) if len(rest) == CHUNK else b""
        full: Entry | None = None
        for entry in (entry for store in stores for entry in store.children(parent)):
            is_full = entry.count == CHUNK and entry.is_named(whole)
            length = start + (CHUNK if is_full else common(entry.tokens(), rest))
            usable = not with_states or (entry.has_states and length == start + entry.count)
            if usable and length > max(best.length, start):
                best = Way((*path, entry), length)
            if is_full and (full is None or not full.has_states):
                full = entry
        if full is None:
            break
        path, parent = (*path, full), whole
    return best


def common(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(some), len(others))
    if some[:most] == others[:most]:
        return most
    length = 0
    while some[length] == others[length]:
        length += 1
    return length
