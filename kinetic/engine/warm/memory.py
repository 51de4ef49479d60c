"""Blocks in memory: of one engine, those used longest ago go first."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.engine.warm.blocks import Block, Contents, Entry


class _Held:
    """A block, as ``blocks.Entry`` has it."""

    def __init__(self, store: MemoryStore, block: Block, contents: Contents) -> None:
        self._store, self.block, self._contents = store, block, contents
        self.name, self.count, self.has_states = block.name, len(block.tokens), block.has_states
        self.size = contents.kept.nbytes + (0 if contents.states is None else contents.states.nbytes)

    def is_named(self, name: bytes) -> bool:
        return self.name == name

    def tokens(self) -> tuple[int, ...]:
        return self.block.tokens

    def load(self) -> Contents:
        self._store.touch(self)
        return self._contents


class MemoryStore:
    """``limit`` in bytes of keys, values and states; 0: it stays empty."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._held: dict[tuple[bytes, bool], _Held] = {}  # in order of use, the latest last
        self._children: dict[bytes, list[_Held]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def children(self, parent: bytes) -> Sequence[Entry]:
        return self._children.get(parent, ())

    def has(self, block: Block) -> bool:
        """Also if it has more than this block."""
        return (block.name, True) in self._held or (block.name, block.has_states) in self._held

    def put(self, block: Block, contents: Contents) -> None:
        held = _Held(self, block, contents)
        if self.has(block) or held.size > self.limit:
            return
        while self.size + held.size > self.limit:
            self._drop(next(iter(self._held.values())))
        self._held[block.name, block.has_states] = held
        self._children.setdefault(block.parent, []).append(held)
        self.size += held.size

    def touch(self, held: _Held) -> None:
        """It was used now."""
        key = held.name, held.has_states
        if key in self._held:
            self._held[key] = self._held.pop(key)

    def use(self, block: Block) -> None:
        for has_states in (False, True):
            if held := self._held.get((block.name, has_states)):
                self.touch(held)

    def _drop(self, held: _Held) -> None:
        del self._held[held.name, held.has_states]
        siblings = self._children[held.block.parent]
        siblings.remove(held)
        if not siblings:
            del self._children[held.block.parent]
        self.size -= held.size
