"""Where activations lie on a device: a node's memory is another's when the last one that reads it has run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.graph import Node


class Slots:
    """Nodes of the same width take turns in one slot. A slot grows with the rows of a pass.

    Those ``apart`` have none: their memory is given by ``place``."""

    def __init__(self, device: Device, nodes: Sequence[Node], apart: Collection[Node] = ()) -> None:
        self._device = device
        self._slot: dict[Node, int] = {}
        self._sizes: list[int] = []
        self._memory: list[Memory] = []
        self._placed: dict[Node, Memory] = {}
        free: dict[tuple[int, int], list[int]] = {}
        last = _last_uses(nodes)
        for number, node in enumerate(nodes):
            if node.op != "tap" and node not in apart:
                kind = free.setdefault((node.width, node.rows), [])
                if not kind:
                    kind.append(len(self._sizes))
                    self._sizes.append(0)
                    self._memory.append(None)
                self._slot[node] = kind.pop()
            for source in {*node.inputs}:
                if last[source] == number and source in self._slot:
                    free[source.width, source.rows].append(self._slot[source])

    def begin(self, node: Node, rows: int) -> None:
        """Make room for a node's rows. What was in its slot may be lost."""
        if node not in self._slot:
            return
        slot, size = self._slot[node], max(1, rows) * node.width * 4
        if self._sizes[slot] < size:
            self._memory[slot], self._sizes[slot] = None, 0  # given back before there is more
            self._memory[slot], self._sizes[slot] = self._device.memory(size), size

    def place(self, node: Node, memory: Memory) -> None:
        """Where the rows of a node ``apart`` are."""
        self._placed[node] = memory

    def of(self, node: Node) -> Memory:
        """float32 [rows, width]."""
        return self._memory[self._slot[node]] if node in self._slot else self._placed[node]


def _last_uses(nodes: Sequence[Node]) -> dict[Node, int]:
    """By node the number of the last one that reads it; none for the result."""
    out: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        for source in node.inputs:
            out[source] = number
    return out
