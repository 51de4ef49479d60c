"""Rows that the host makes for a pass: of tables, which stay in the file, of rotations, and those given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinetic.backends import rope_tables
from kinetic.backends.base import Rope
from kinetic.backends.control_word import default_rounding
from kinetic.backends.gpu.inputs import Shape
from kinetic.backends.graph import Node
from kinetic.bits import F32
from kinetic.formats import by_type
from kinetic.types import Batch

TABLES = ("embed", "positions", "first_row")


class HostRows:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.names: dict[Node, str] = {}
        """Nodes whose rows these are, and what their arrays are called."""
        self._ropes: dict[Rope, str] = {}
        self._tables: dict[str, Node] = {}
        self._turned: dict[str, rope_tables.Turned] = {}
        self._shapes: dict[str, int] = {}
        for node in nodes:
            if node.op in TABLES:
                self.names[node] = f"{node.op} {node['table'].name}"
                self._tables[self.names[node]] = node
            elif node.op == "given":
                self.names[node] = node.op
            elif node.op == "rope" and node["rope"] not in self._ropes:
                self._ropes[node["rope"]] = name = f"rope {len(self._ropes)}"
                self._shapes[name] = 2 * len(node["rope"].frequencies)
                self._turned[name] = rope_tables.Turned(node["rope"])
        self._shapes |= {name: node.width for node, name in self.names.items()}

    def shapes(self, rows: int) -> dict[str, Shape]:
        """float32 [rows, width] each."""
        return {name: ((rows, width), np.float32) for name, width in self._shapes.items()}

    def turned(self, rope: Rope) -> str:
        """The array of a rotation: cosines, then sines, of each row's position, float32 [rows, 2 * pairs]."""
        return self._ropes[rope]

    def fill(self, arrays: Mapping[str, np.ndarray], batch: Batch, given: F32 | None) -> None:
        positions = np.array(batch.positions, np.int64)
        wanted = {"embed": batch.tokens, "positions": positions, "first_row": (0,) * len(positions)}
        with default_rounding():
            for name, node in self._tables.items():
                table = node["table"]
                raw = table.data[np.array(wanted[node.op], np.int64)]
                arrays[name][...] = by_type(table.ggml_type, table.name).decode(raw)
            for rope, name in self._ropes.items():
                arrays[name][...] = self._turned[name].of(batch.positions)[positions]
        if given is not None:
            arrays["given"][...] = given
