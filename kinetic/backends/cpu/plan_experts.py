"""Mixtures of experts on the tape: methods of ``plan.Planner``, in a file of their own.

The rows of each expert are gathered, so that its weights are read once in a pass; of a single row each thread makes
its own inputs, as for other products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK, Experts, Routing
from kinetic.backends.cpu import expert_fields as fields
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.barriers import ALL_MODES, OWN, Buffer, By
from kinetic.backends.cpu.functions import RECORD
from kinetic.backends.cpu.layout import GROUP
from kinetic.backends.cpu.memory import address, round_up
from kinetic.backends.cpu.tiles import MANY, ONE, TWO
from kinetic.backends.cpu.weights import Packed
from kinetic.backends.graph import Node
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic.backends.cpu.plan import Planner

GATINGS = {"softmax": 0, "sigmoid": 1, "softmax_chosen": 2}
COPIES = 256
"""Rows of inputs that there is always room for: each thread's own of a single row."""

LAST = ("last thread",)
"""It routes a single row, and assigns slots to experts."""


def route(planner: Planner, node: Node) -> None:
    routing: Routing = node["routing"]
    logits, out = planner._buffers[node.inputs[0]], planner._float_buffer(node)
    rows = ("rows", node.rows)
    bias = planner._store.vector(node["bias"]) if node["bias"] is not None else 0
    factors = planner._store.vector(node["factors"]) if node["factors"] is not None else 0
    words = [logits.address, logits.stride, node.inputs[0].width, routing.used, out.address, out.stride]
    words += [GATINGS[routing.gating], int(routing.normalised), planner._constant(routing.scale), bias]
    words += [routing.groups, routing.used_groups, factors]
    planner._emit(tape.ROUTE, node, words, [(logits, By(rows, LAST))], [(out, By(rows, LAST))])
    planner._finish(node, out)


def experts(planner: Planner, node: Node) -> None:
    memory = _Memory(planner, node)
    described = planner._constants[node] = _describe(planner, node, memory)
    words = [address(described)]
    x, routes = (planner._buffers[source] for source in node.inputs)
    table, own, rows = memory.table, By(None, OWN), ("rows", node.rows)
    inputs = [(buffer, own) for buffer in (memory.records, memory.columns) if buffer]
    planner._emit(tape.ASSIGN, node, words, [(routes, By(None, LAST))], [(table, LAST)])
    planner._emit(tape.EXPERT_INPUT, node, words, [(x, None), (table, None)], inputs)
    planner._emit(tape.EXPERT_HIDDEN, node, words, [*inputs, (table, None)], [(memory.hidden, None)])
    reads = [(memory.hidden, None), (table, None), (routes, None)]
    planner._emit(tape.EXPERT_DOWN, node, words, reads, [(memory.made, None), (memory.out, None)])
    many = [mode for mode in ALL_MODES if not mode & tape.ONE_ROW]
    reads = [(memory.made, None), (table, None), (routes, None)]
    planner._emit(tape.EXPERT_SUM, node, words, reads, [(memory.made, None), (memory.out, rows)], many)
    memory.release(planner)
    planner._finish(node, memory.out)


class _Memory:
    """What one mixture needs while it is computed."""

    def __init__(self, planner: Planner, node: Node) -> None:
        blocks: Experts = node["experts"]
        experts, hidden, width = blocks.up.shape
        self.gate = planner._store.packed(blocks.gate) if blocks.gate is not None else None
        self.up, self.down = planner._store.packed(blocks.up), planner._store.packed(blocks.down)
        slots = planner._capacity * (node.inputs[1].width // 2)
        most_units = min(experts, slots) * max(-(-hidden // (2 * GROUP)), self.down.groups)
        if most_units > tape.MOST_UNITS:
            message = f"a mixture of {experts} experts has more parts than the CPU backend can count"
            raise KineticError(message, name="TOO_LARGE")
        rows = max(slots, COPIES)
        quantised = {side.fmt.QUANTISED for side in (self.gate, self.up) if side}
        self.table = planner._buffer(8 * (1 + 4 * experts + 2 * slots), 0)
        self.records = planner._buffer(_record_bytes(width) * rows, 0) if True in quantised else None
        self.columns = planner._buffer(4 * width * rows, 0) if False in quantised else None
        size = _record_bytes(hidden) if self.down.fmt.QUANTISED else 4 * hidden
        self.hidden = planner._buffer(size * slots, 0)
        stride = 4 * round_up(node.width, GROUP)
        self.made = planner._buffer(stride * slots, stride)
        self.out = planner._float_buffer(node)

    def release(self, planner: Planner) -> None:
        for buffer in (self.table, self.records, self.columns, self.hidden, self.made):
            if buffer:
                planner._free.setdefault((len(buffer.data), buffer.stride), []).append(buffer)


def _record_bytes(width: int) -> int:
    return width // BLOCK * RECORD


def _describe(planner: Planner, node: Node, memory: _Memory) -> NDArray[np.int64]:
    """The words of ``expert_fields``."""
    blocks: Experts = node["experts"]
    x, routes = (planner._buffers[source] for source in node.inputs)
    gate, up, down = memory.gate, memory.up, memory.down
    words = [blocks.up.shape[0], node.inputs[1].width // 2, routes.address, routes.stride, memory.table.address]
    words += [x.address, x.stride, up.width, _address(memory.records), _address(memory.columns)]
    for side in (gate, up, down):
        words += _product(planner, side)
    words.append(planner._kernels.tile(gate.fmt, TWO) if gate and gate.fmt is up.fmt else 0)
    words.append(planner._kernels.tile(down.fmt, TWO))
    words += [up.rows, memory.hidden.address]
    made = "gated" if gate else "ungated"
    words += [planner._kernels.address(f"{made}_{kind}_{blocks.activation}") for kind in ("row", "tile")]
    words += [memory.made.address, memory.made.stride, memory.out.address, memory.out.stride, node.width]
    for bias in blocks[4:]:
        words += [planner._store.vectors(bias), 4 * round_up(bias.shape[1], GROUP)] if bias is not None else [0, 0]
    assert len(words) == fields.WORDS
    return np.array(words, np.int64)


def _address(buffer: Buffer | None) -> int:
    return buffer.address if buffer else 0


def _product(planner: Planner, side: Packed | None) -> list[int]:
    if side is None:
        return [0] * 7
    one, many = (planner._kernels.tile(side.fmt, kind) for kind in (ONE, MANY))
    size = side.width // BLOCK if side.fmt.QUANTISED else side.width
    words = [one, many, address(side.data), side.group_bytes, side.matrix_bytes, size]
    return [*words, int(not side.fmt.QUANTISED)]
