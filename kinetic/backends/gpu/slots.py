"""Where activations lie on a device: a node's memory is another's when the last one that reads it has run."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.graph import Node


class Slots:
    """Nodes of the same width take turns in one slot. A slot grows with the rows of a pass."""

    def __init__(self, device: Device, nodes: Sequence[Node]) -> None:
        self._device = device
        self._slot: dict[Node, int] = {}
        self._sizes: list[int] = []
        self._memory: list[Memory] = []
        free: dict[tuple[int, int], list[int]] = {}
        last = _last_uses(nodes)
        for number, node in enumerate(nodes):
            if node.op != "tap":
                kind = free.setdefault((node.width, node.rows), [])
                if not kind:
                    kind.append(len(self._sizes))
                    self._sizes.append(0)
                    self._memory.append(None)
                self._slot[node] = kind.pop()
            for source in {*node.inputs}:
                if last[source] == number:
                    free[source.width, source.rows].append(self._slot[source])

    def begin(self, node: Node, rows: int) -> None:
        """Make room for a node's rows. What was in its slot may be lost."""
        if node not in self._slot:
            return
        slot, size = self._slot[node], max(1, rows) * node.width * 4
        if self._sizes[slot] < size:
            self._memory[slot], self._sizes[slot] = self._device.memory(size), size

    def of(self, node: Node) -> Memory:
        """float32 [rows, width]."""
        return self._memory[self._slot[node]]


def _last_uses(nodes: Sequence[Node]) -> dict[Node, int]:
    """By node the number of the last one that reads it; none for the result."""
    out: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        for source in node.inputs:
            out[source] = number
    return out
