"""Turns a graph into a tape: picks fused instructions, reuses buffers, and puts a barrier only where one is needed.

Fusing never changes a bit: a fused instruction does the operations of its
parts in their order, it only skips the trip through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK, Rope
from kinetic.backends.cpu import plan_delta, plan_experts, plan_heads, plan_recurrent, plan_rows, tape
from kinetic.backends.cpu.barriers import ALL_MODES, OWN, Buffer, By, Partition, Touch, Touched
from kinetic.backends.cpu.functions import RECORD
from kinetic.backends.cpu.layout import GROUP
from kinetic.backends.cpu.memory import address, allocate, round_up
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.pages import PageLayout
from kinetic.backends.cpu.plan_fused import fused, fuses_gate, fuses_into_add, fuses_into_rope, only_quantised
from kinetic.backends.cpu.plan_rows import expect_room
from kinetic.backends.cpu.shortlist import WORDS, Output, is_possible
from kinetic.backends.cpu.tiles import MANY, ONE, TWO
from kinetic.backends.cpu.weights import Packed, WeightStore
from kinetic.backends.graph import Node
from kinetic.backends.states import StateStore
from kinetic.errors import KineticError

TABLES = ("embed", "positions", "first_row")
"""Operations that look up rows of tables."""

FILLED = (*TABLES, "given")
"""Operations whose rows are written before a pass begins, so nothing else may use their memory before they are read."""


@dataclass
class Tape:
    """What ``program`` needs to run a forward pass."""

    code: NDArray[np.int64]
    filled: list[tuple[Node, Buffer]]
    """Rows of tables, to be written before each pass."""
    logits: Buffer
    vocab_size: int
    given: tuple[Node, Buffer] | None
    """What comes beside the tokens, filled as rows of tables are before a pass begins."""
    output_rows: NDArray[np.int64]
    spans: NDArray[np.int64]
    """[capacity, 3]: of the mean for each output row first row, rows, and their number (``span_words``)."""
    ropes: list[tuple[Rope, int]]
    """Each rotation and the program slot of its table."""
    groups: list[tuple[int, int]]
    """Query heads that share a key head, and the program slot of the blocks made for that number."""
    taps: dict[str, tuple[Node, Buffer]] = field(default_factory=dict)
    """Copies of activations that somebody wants to see, by name."""
    keep: list[object] = field(default_factory=list)
    output: Output | None = None
    """The product that makes the logits, where the best ones can be found without the others."""


class Planner:
    """Emits instructions node by node. ``capacity`` is the most rows of one run."""

    def __init__(
        self, kernels: Kernels, store: WeightStore, pages: PageLayout, states: StateStore, capacity: int
    ) -> None:
        self._kernels, self._store, self._pages, self._states = kernels, store, pages, states
        self._capacity = capacity
        self._code: list[list[int]] = []
        self._touched = Touched()
        self._buffers: dict[Node, Buffer] = {}
        self._records: dict[Node, Buffer] = {}
        self._columns: dict[Node, Buffer] = {}
        self._own: set[Node] = set()  # those whose records or columns each thread makes for itself
        self._pending: dict[Node, int] = {}
        self._output: Output | None = None
        # By size and stride: partitions of rows and of records are different bytes of the same memory.
        self._free: dict[tuple[int, int], list[Buffer]] = {}
        self._all: list[Buffer] = []
        self._constants: dict[Any, NDArray[Any]] = {}  # by value, or the node that they describe
        self._cache, self._parts = Buffer(np.zeros(0, np.uint8)), Buffer(np.zeros(0, np.uint8))
        self._taps: dict[str, tuple[Node, Buffer]] = {}
        self._ropes: dict[Rope, int] = {}
        self._groups: dict[int, int] = {}
        self._slots = tape.FIRST_FREE
        self._rows = allocate(8 * capacity).view(np.int64)
        self._spans = allocate(24 * capacity).view(np.int64).reshape(-1, 3)

    def plan(self, nodes: Sequence[Node]) -> Tape:
        """Nodes in the order they were made; the last one, taps aside, is the logits."""
        self._logits = logits = [node for node in nodes if node.op != "tap"][-1]
        self._pending = {node: len(node.uses) + (node is logits) for node in nodes}
        done_elsewhere = fused(nodes)
        filled = [(node, self._float_buffer(node)) for node in nodes if node.op in FILLED]
        self._buffers.update(filled)
        for node in nodes:
            if node not in done_elsewhere and node.op not in FILLED:
                getattr(self, f"_{node.op}")(node)
        return Tape(
            code=np.array(self._code, np.int64),
            filled=[pair for pair in filled if pair[0].op in TABLES],
            logits=self._buffers[logits],
            given=next((pair for pair in filled if pair[0].op == "given"), None),
            vocab_size=logits.width,
            output_rows=self._rows,
            spans=self._spans,
            ropes=list(self._ropes.items()),
            groups=list(self._groups.items()),
            taps=self._taps,
            keep=[self._constants, self._store, self._all],
            output=self._output,
        )

    # ---- instructions, barriers, buffers

    def _emit(
        self,
        op: int,
        node: Node,
        words: Sequence[int],
        reads: Sequence[Touch],
        writes: Sequence[Touch],
        modes: Sequence[int] = ALL_MODES,
    ) -> None:
        """Appends an instruction that does something in ``modes``, after a barrier for those that need one."""
        waiting = self._touched.waiting(modes, reads, writes)
        if waiting:
            self._code.append([tape.BARRIER, 0, waiting] + [0] * (tape.WORDS - 3))
        if len(words) + 2 > tape.WORDS:
            raise KineticError(f"instruction {tape.NAMES[op]} has too many fields")
        self._code.append([op, node.rows, *words] + [0] * (tape.WORDS - 2 - len(words)))

    def _buffer(self, size: int, stride: int) -> Buffer:
        free = self._free.get((size, stride))
        if free:
            return free.pop()
        self._all.append(Buffer(allocate(size), stride))
        return self._all[-1]

    def _float_buffer(self, node: Node) -> Buffer:
        stride = 4 * round_up(node.width, GROUP)
        if stride % 1024 == 0:  # rows a power of two apart would share cache sets
            stride += 64
        return self._buffer(stride * self._capacity, stride)

    def _record_buffer(self, width: int) -> Buffer:
        return self._buffer(width // BLOCK * RECORD * self._capacity, 0)

    def _done_with(self, *nodes: Node) -> None:
        """One use of each node is over; after the last its buffers may be used again."""
        for node in nodes:
            self._pending[node] -= 1
            if self._pending[node] == 0:
                for held in (made.pop(node, None) for made in (self._buffers, self._records, self._columns)):
                    if held is not None:
                        self._give_back(held)

    def _give_back(self, buffer: Buffer) -> None:
        """A buffer that belongs to no node may be used again."""
        self._free.setdefault((len(buffer.data), buffer.stride), []).append(buffer)

    def _take_over(self, source: Node) -> Buffer | None:
        """The buffer of ``source`` for the node that reads it now, if nothing else will."""
        return self._buffers.pop(source) if self._pending[source] == 1 else None

    def _target(self, node: Node, residual: Node | None) -> tuple[Buffer, Buffer | None]:
        """Where ``node`` goes, and what is added to it: in place if nothing else will read the residual."""
        if residual is None:
            return self._float_buffer(node), None
        taken = self._take_over(residual)
        return (taken, taken) if taken else (self._float_buffer(node), self._buffers[residual])

    def _constant(self, *values: float) -> int:
        """Address of float32 constants."""
        if values not in self._constants:
            self._constants[values] = np.array(values, np.float32)
        return address(self._constants[values])

    def _slot(self, table: dict[Any, int], key: object, words: int) -> int:
        if key not in table:
            table[key] = self._slots
            self._slots += words
        return table[key]

    # ---- activations as records

    def _records_of(self, node: Node) -> Buffer:
        """The quantised form of ``node``, made on first need."""
        if node in self._records:
            return self._records[node]
        if node.op == "gated" and node not in self._buffers:
            self._emit_gated(node)
            return self._records[node]
        source, weight, eps = node, 0, 0.0
        if node.op == "norm" and node not in self._buffers:
            source, weight, eps = node.inputs[0], self._store.vector(node["weight"]), node["eps"]
        x = self._buffers[source]
        out = self._records[node] = self._record_buffer(node.width)
        words = [x.address, x.stride, weight, node.width, out.address, node.width // BLOCK, self._constant(eps)]
        rows = ("rows", node.rows)
        self._emit(tape.NORM_QUANTISE, node, words, [(x, By(rows, None))], [(out, By(rows, OWN))])
        self._own.add(node)
        if source is not node:
            self._done_with(source)
        return out

    def _emit_gated(self, node: Node) -> None:
        gate, up = (self._store.packed(side["weight"]) for side in node.inputs)
        source = node.inputs[0].inputs[0]
        x = self._records_of(source)
        out = self._records[node] = self._record_buffer(node.width)
        kernels = [self._kernels.tile(side.fmt, kind) for side in (gate, up) for kind in (ONE, MANY)]
        kernels.append(self._kernels.tile(gate.fmt, TWO) if gate.fmt is up.fmt else 0)
        words = [*kernels, address(gate.data), gate.group_bytes, address(up.data), up.group_bytes]
        words += [node.width // BLOCK, gate.width // BLOCK]
        words += [x.address, out.address, self._kernels.address(f"gated_tile_{node['activation']}")]
        words.append(int(source in self._own))
        self._emit(tape.GATED, node, words, [(x, self._read_whole(source))], [(out, None)])
        self._done_with(source, source)

    def _read_whole(self, node: Node) -> Partition | By:
        """How every thread reads all of the records or columns of ``node``."""
        return By(None, OWN) if node in self._own else None

    def _columns_of(self, node: Node) -> Buffer:
        """Tiles of the rows of ``node`` as [column][row], made on first need."""
        if node not in self._columns:
            x = self._buffers[node]
            out = self._columns[node] = self._buffer(4 * node.width * self._capacity, 0)
            words = [x.address, x.stride, node.width, out.address]
            rows = ("columns of rows", node.rows)
            self._emit(tape.COLUMNS, node, words, [(x, By(("rows", node.rows), None))], [(out, By(rows, OWN))])
            self._own.add(node)
        return self._columns[node]

    # ---- one method for each operation

    _route, _experts = plan_experts.route, plan_experts.experts
    _delta = plan_delta.delta
    _cut, _join, _linear_heads = plan_heads.cut, plan_heads.join, plan_heads.linear_heads
    _mul, _activate, _short_conv = plan_recurrent.mul, plan_recurrent.activate, plan_recurrent.short_conv
    _scan = plan_recurrent.scan
    _attend, _softcap = plan_rows.attend, plan_rows.softcap

    def _scale(self, node: Node) -> None:
        x = self._buffers[node.inputs[0]]
        out = self._take_over(node.inputs[0]) or self._float_buffer(node)
        rows = ("rows", node.rows)
        words = [x.address, out.address, x.stride, node.width, self._constant(node["factor"])]
        self._emit(tape.SCALE, node, words, [(x, rows)], [(out, rows)])
        self._finish(node, out)

    def _norm(self, node: Node, residual: Node | None = None, owner: Node | None = None) -> None:
        """A norm whose float form is needed; with ``residual`` added when ``owner`` is the sum of both."""
        source = node.inputs[0]
        if residual is None and only_quantised(node):
            return  # made as records when first read
        x = self._buffers[source]
        *groups, width = node["weight"].shape
        out, extra = self._target(node, residual)
        words = [x.address, x.stride, self._store.vector(node["weight"]), width, out.address, out.stride]
        words += [self._constant(node["eps"]), node.width // width, extra.address if extra else 0]
        words.append(4 * width if groups else 0)
        rows = ("rows", node.rows)
        reads = [(x, rows)] + ([(extra, rows)] if extra else [])
        self._emit(tape.NORM, node, words, reads, [(out, rows)])
        self._done_with(source)
        self._buffers[owner or node] = out

    def _layer_norm(self, node: Node) -> None:
        source, rows = node.inputs[0], ("rows", node.rows)
        x, out = self._buffers[source], self._take_over(source) or self._float_buffer(node)
        bias = self._store.vector(node["bias"]) if node["bias"] is not None else self._zeros(node.width)
        words = [x.address, self._store.vector(node["weight"]), bias, out.address, out.stride, node.width]
        words.append(self._constant(node["eps"]))
        self._emit(tape.LAYER_NORM, node, words, [(x, rows)], [(out, rows)])
        self._finish(node, out)

    def _zeros(self, width: int) -> int:
        """Address of a row of zeros."""
        key = ("zeros", width)
        if key not in self._constants:
            self._constants[key] = allocate(4 * round_up(width, GROUP))
        return address(self._constants[key])

    def _linear(self, node: Node, residual: Node | None = None, owner: Node | None = None) -> None:
        """A product; with ``residual`` added when ``owner`` is the sum of both."""
        source = node.inputs[0]
        packed = self._store.packed(node["weight"])
        quantised = packed.fmt.QUANTISED
        x = self._records_of(source) if quantised else self._columns_of(source)
        expect_room(packed.groups, f"tensor '{node['weight'].name}'")
        out, extra = self._target(node, residual)
        bias = self._store.vector(node["bias"]) if node["bias"] is not None else 0
        size = packed.width // BLOCK if quantised else packed.width
        row_bytes = size * (RECORD if quantised else 4)
        words = [self._kernels.tile(packed.fmt, kind) for kind in (ONE, TWO, MANY)]
        words += [address(packed.data), packed.group_bytes, packed.groups, size, x.address, row_bytes]
        words += [out.address, out.stride, bias, extra.address if extra else 0, row_bytes * (source in self._own)]
        reads: list[Touch] = [(x, self._read_whole(source))]
        reads += [(extra, None)] if extra else []
        if node is self._logits and is_possible(node, packed):
            self._emit_output(node, words, reads, out, packed)
        else:
            self._emit(tape.MATMUL, node, words, reads, [(out, None)])
        self._done_with(source)
        self._buffers[owner or node] = out

    def _emit_output(self, node: Node, words: list[int], reads: list[Touch], out: Buffer, packed: Packed) -> None:
        """The product that makes the logits, or only the best ones: see ``core_shortlist``."""
        self._output = Output(node["weight"], packed, np.zeros(WORDS, np.int64))
        words = [*words, address(self._output.words)]
        bounds = Buffer(np.zeros(0, np.uint8))
        self._emit(tape.OUTPUT, node, words, reads, [(out, None), (bounds, None)])
        self._emit(tape.EXACT, node, words, [*reads, (bounds, None)], [(out, None)])

    def _add(self, node: Node) -> None:
        x, y = node.inputs
        if fuses_into_add(y):
            getattr(self, f"_{y.op}")(y, residual=x, owner=node)
            self._done_with(x)
            return
        bx, by = self._buffers[x], self._buffers[y]
        out = self._take_over(x) or self._float_buffer(node)
        rows = ("rows", node.rows)
        words = [bx.address, by.address, out.address, out.stride, node.width]
        self._emit(tape.ADD, node, words, [(bx, rows), (by, rows)], [(out, rows)])
        self._finish(node, out)

    def _gated(self, node: Node) -> None:
        if fuses_gate(node):
            return  # made as records when first read
        if node.inputs[0].width < node.width:
            plan_delta.gated_column(self, node)
            return
        gate, up = (self._buffers[side] for side in node.inputs)
        out = self._take_over(node.inputs[0]) or self._float_buffer(node)
        rows = ("rows", node.rows)
        words = [gate.address, up.address, out.address, out.stride, node.width]
        words.append(self._kernels.address(f"gated_row_{node['activation']}"))
        self._emit(tape.GATED_FLOAT, node, words, [(gate, rows), (up, rows)], [(out, rows)])
        self._finish(node, out)

    def _rope(self, node: Node) -> None:
        """In place; a norm of the heads right before it is done on the way."""
        source, rope, head_dim = node.inputs[0], node["rope"], node["head_dim"]
        weight, eps = 0, 0.0
        if fuses_into_rope(source):
            weight, eps = self._store.vector(source["weight"]), source["eps"]
            inner = source.inputs[0]
            self._buffers[source] = self._buffers.pop(inner)
            self._pending[inner] -= 1
        x = self._take_over(source)
        if x is None:
            raise KineticError("a rotated activation is used twice, which this plan cannot do in place")
        heads = node.width // head_dim
        slot = self._slot(self._ropes, rope, 1)
        words = [x.address, x.stride, heads, head_dim, slot, len(rope.frequencies), int(rope.interleaved)]
        words += [weight, self._constant(eps), 4 * rope.first]
        part = ("heads", heads, head_dim, node.rows)
        self._emit(tape.ROPE, node, words, [(x, part)], [(x, part)])
        self._finish(node, x)

    def _outputs(self, node: Node) -> None:
        x, out = self._buffers[node.inputs[0]], self._float_buffer(node)
        words = [x.address, out.address, x.stride, node.width, address(self._rows)]
        self._emit(tape.GATHER, node, words, [(x, None)], [(out, ("rows", node.rows))])
        self._finish(node, out)

    def _average(self, node: Node) -> None:
        x, out = self._buffers[node.inputs[0]], self._float_buffer(node)
        words = [x.address, out.address, x.stride, round_up(node.width, GROUP) // GROUP, address(self._spans)]
        self._emit(tape.AVERAGE, node, words, [(x, None)], [(out, None)])
        self._finish(node, out)

    def _tap(self, node: Node) -> None:
        """A copy that nothing overwrites. It is a reader as any other, so what it reads is not fused away."""
        source = node.inputs[0]
        x, out = self._buffers[source], self._float_buffer(node)
        rows = ("rows", node.rows)
        words = [x.address, out.address, x.stride, node.width, self._constant(1.0)]
        self._emit(tape.SCALE, node, words, [(x, rows)], [(out, rows)])
        self._done_with(source)
        self._taps[node["name"]] = node, out

    def _finish(self, node: Node, out: Buffer) -> None:
        self._done_with(*node.inputs)
        self._buffers[node] = out


def span_words(first: int, rows: int) -> tuple[int, int, int]:
    """A row of ``Tape.spans``: the number of rows again, as a float32 in the upper half of a word."""
    return first, rows, int(np.float32(rows).view(np.int32)) << 32
