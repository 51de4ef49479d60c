"""Runs the nodes of a graph on a device, one after another: which kernels each takes, and in whose memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kinetic.backends import rope_tables
from kinetic.backends.base import CHUNK, Rope
from kinetic.backends.control_word import default_rounding
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.gpu.expert_cache import ExpertOffload
from kinetic.backends.gpu.experts import Mixtures
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.pages import Pages
from kinetic.backends.gpu.products import HEADS, KINDS, Products, Several
from kinetic.backends.gpu.recurrent import Recurrences, Spans
from kinetic.backends.gpu.slots import Slots
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import OUTPUT_ROWS, Node
from kinetic.backends.states import StateStore
from kinetic.backends.whole import whole_spans
from kinetic.bits import F32
from kinetic.formats import by_type
from kinetic.types import Batch, lengths

PARTIAL_BYTES = 64 << 20
"""What the chunks of attention may take; more rows are attended to in several launches."""

TABLES = ("embed", "positions", "first_row")


@dataclass
class Pass:
    """What the kernels of one pass read beside activations."""

    batch: Batch
    given: F32 | None
    chunks: int
    rows: Memory
    """int32 [T, 3]: position, number of the sequence in ``tables``, and how long that is."""
    tables: Memory
    """int32 [sequences, chunks]: pages."""
    outputs: Memory
    """int32 [outputs]."""
    spans: Spans | None
    """Where there are recurrences."""


class Executor:
    """``run`` gives the last node's rows. All weights are on the device once this is made."""

    def __init__(
        self,
        device: Device,
        nodes: Sequence[Node],
        pages: Pages,
        states: StateStore,
        offload: ExpertOffload | None = None,
    ) -> None:
        self._device, self._nodes, self._pages = device, nodes, pages
        self._launches = Launches(device)
        self._slots = Slots(device, nodes)
        self._weights = DeviceWeights(device)
        self._products = Products(self._launches, self._weights)
        self.mixtures = Mixtures(self._launches, self._weights, self._products, nodes, offload)
        self._recurrences = Recurrences(self._launches, self._weights, states)
        self._recurs = bool(states.states)
        self._steps: dict[str, Callable[[Node, Pass], None]] = {
            op: getattr(self, f"_{op}") for op in OPS if op not in TABLES
        } | dict.fromkeys(TABLES, self._table)
        self._ropes: dict[Rope, F32] = {}
        self._rope_rows: dict[Rope, Memory] = {}
        self._seen: dict[str, F32] = {}
        for node in nodes:
            self._prepare(node)

    def _prepare(self, node: Node) -> None:
        """Copy what a node reads to the device, and build its products: not while an answer is waited for."""
        if node.op in ("linear", "linear_heads"):
            self._products.prepare(node["weight"], several=node.op == "linear_heads")
        elif node.op == "experts":
            self.mixtures.prepare(node)
        self._recurrences.prepare(node)
        for name in VECTORS.get(node.op, ()):
            if node[name] is not None:
                self._weights.vector(node[name])

    def close(self) -> None:
        self.mixtures.close()

    # ---- one pass

    def run(self, batch: Batch, given: F32 | None) -> tuple[F32, dict[str, F32]]:
        """Logits float32 [outputs, V], and what was tapped."""
        about = self._pass(batch, given)
        self._rope_rows, self._seen = {}, {}
        self._products.begin()
        for node in self._nodes:
            self._slots.begin(node, self._count(node, about))
            self._steps[node.op](node, about)
        last = self._nodes[-1]
        while last.op == "tap":
            last = last.inputs[0]
        return self._fetched(last, about), self._seen

    def _pass(self, batch: Batch, given: F32 | None) -> Pass:
        ends = lengths(batch)
        chunks = -(-max(ends.values()) // CHUNK)
        tables = np.zeros((len(ends), chunks), np.int32)
        for number, (sequence, end) in enumerate(ends.items()):
            table = self._pages.table(sequence, end)[:chunks]
            tables[number, : len(table)] = table
        numbers = {sequence: number for number, sequence in enumerate(ends)}
        rows = [
            (position, numbers[sequence], ends[sequence])
            for position, sequence in zip(batch.positions, batch.sequences, strict=True)
        ]
        upload = self._device.upload
        places, outputs = np.array(rows, np.int32), np.array(batch.outputs, np.int32)
        spans = self._recurrences.spans(batch) if self._recurs else None
        return Pass(batch, given, chunks, upload(places), upload(tables), upload(outputs), spans)

    def _count(self, node: Node, about: Pass) -> int:
        """Rows of a node."""
        return len(about.batch.outputs if node.rows == OUTPUT_ROWS else about.batch.tokens)

    def _fetched(self, node: Node, about: Pass) -> F32:
        out = np.zeros((self._count(node, about), node.width), np.float32)
        if out.size:
            self._device.read(self._slots.of(node), out)
        return out

    def _elements(self, name: str, node: Node, about: Pass, *more: Memory | np.generic) -> None:
        """A kernel of elementwise.cu: a node's elements from those of its inputs."""
        inputs = (self._slots.of(source) for source in node.inputs)
        self._launches.each(
            "elementwise", name, self._count(node, about) * node.width, self._slots.of(node), *inputs, *more
        )

    # ---- operations

    def _table(self, node: Node, about: Pass) -> None:
        """Rows of a table stay in the file, and are decoded on the host."""
        table, batch = node["table"], about.batch
        wanted = {"embed": batch.tokens, "positions": batch.positions, "first_row": (0,) * len(batch.tokens)}
        with default_rounding():
            rows = by_type(table.ggml_type, table.name).decode(table.data[np.array(wanted[node.op], np.int64)])
        self._device.write(self._slots.of(node), np.ascontiguousarray(rows))

    def _given(self, node: Node, about: Pass) -> None:
        assert about.given is not None
        self._device.write(self._slots.of(node), np.ascontiguousarray(about.given))

    def _scale(self, node: Node, about: Pass) -> None:
        self._elements("scale_rows", node, about, np.float32(node["factor"]))

    def _softcap(self, node: Node, about: Pass) -> None:
        self._elements("softcap_rows", node, about, np.float32(node["cap"]))

    def _add(self, node: Node, about: Pass) -> None:
        self._elements("add_rows", node, about)

    def _mul(self, node: Node, about: Pass) -> None:
        self._elements("mul_rows", node, about)

    def _activate(self, node: Node, about: Pass) -> None:
        self._elements("activate_rows", node, about, np.int32(KINDS.index(node["activation"])))

    def _gated(self, node: Node, about: Pass) -> None:
        kind, gate = np.int32(KINDS.index(node["activation"])), node.inputs[0]
        gate_width = 1 if gate.width != node.width else node.width
        self._elements("gate_rows", node, about, kind, np.int32(gate_width), np.int32(node.width))

    def _cut(self, node: Node, about: Pass) -> None:
        width = node.inputs[0].width // node["heads"]
        self._elements("cut_heads", node, about, *map(np.int32, (width, node["first"], node["count"])))

    def _join(self, node: Node, about: Pass) -> None:
        (x, y), heads, shared = node.inputs, node["heads"], node["shared"]
        widths = x.width // heads, y.width if shared else y.width // heads
        self._elements("join_heads", node, about, *map(np.int32, (*widths, heads, shared)))

    def _outputs(self, node: Node, about: Pass) -> None:
        self._elements("take_rows", node, about, about.outputs, np.int32(node.width))

    def _average(self, node: Node, about: Pass) -> None:
        spans = whole_spans(about.batch)
        of_outputs = [spans[about.batch.sequences[output]] for output in about.batch.outputs]
        memory = self._device.upload(np.array(of_outputs, np.int32))
        self._elements("average_rows", node, about, memory, np.int32(node.width))

    def _layer_norm(self, node: Node, about: Pass) -> None:
        weight, bias = self._weights.vector(node["weight"]), node["bias"]
        sides = weight, weight if bias is None else self._weights.vector(bias)
        numbers = np.int32(bias is not None), np.int32(node.width), np.float32(node["eps"])
        memory = self._slots.of(node), self._slots.of(node.inputs[0]), *sides
        self._launches.groups("norm", "layer_norm", self._count(node, about), *memory, *numbers)

    def _tap(self, node: Node, about: Pass) -> None:
        self._seen[node["name"]] = self._fetched(node.inputs[0], about)

    def _norm(self, node: Node, about: Pass) -> None:
        weight, count = node["weight"], self._count(node, about)
        width = weight.shape[-1]
        kinds = math.prod(weight.shape[:-1])  # exact: integers
        shape = np.int32(width), np.int32(kinds), np.float32(node["eps"])
        memory = (self._slots.of(node), self._slots.of(node.inputs[0]), self._weights.vector(weight))
        self._launches.groups("norm", "rms_norm", count * (node.width // width), *memory, *shape)

    def _rope(self, node: Node, about: Pass) -> None:
        rope: Rope = node["rope"]
        half, shape = len(rope.frequencies), (node.width, node["head_dim"])
        sizes = map(np.int32, (*shape, half, rope.first, rope.interleaved))
        count = self._count(node, about) * node.width
        memory = self._slots.of(node), self._slots.of(node.inputs[0]), self._turned(rope, about)
        self._launches.each("rope", "rope", count, *memory, *sizes)

    def _turned(self, rope: Rope, about: Pass) -> Memory:
        """Cosines, then sines, of each row's position: float32 [T, 2 * pairs]."""
        if rope not in self._rope_rows:
            known, needed = self._ropes.get(rope), max(about.batch.positions) + 1
            if known is None or len(known) < needed:
                start = 0 if known is None else len(known)
                size = max(-(-needed // CHUNK) * CHUNK, 2 * start)
                with default_rounding():
                    new = np.concatenate(rope_tables.table(rope, start, size - start), axis=1)
                known = self._ropes[rope] = new if known is None else np.concatenate([known, new])
            self._rope_rows[rope] = self._device.upload(known[np.array(about.batch.positions, np.int64)])
        return self._rope_rows[rope]

    # ---- products

    def _linear(self, node: Node, about: Pass) -> None:
        rows, x, y = self._count(node, about), node.inputs[0], self._slots.of(node)
        self._products.product(y, self._slots.of(x), rows, node["weight"], node=x)
        if node["bias"] is not None:
            self._products.add_bias(y, rows, node["bias"])

    def _linear_heads(self, node: Node, about: Pass) -> None:
        """Each head of each row is a row of its own."""
        x, y, heads = self._slots.of(node.inputs[0]), self._slots.of(node), node["weight"].shape[0]
        self._products.product(y, x, self._count(node, about) * heads, node["weight"], Several(y, heads, HEADS))

    def _route(self, node: Node, about: Pass) -> None:
        self.mixtures.route(self._slots.of(node), self._slots.of(node.inputs[0]), self._count(node, about), node)

    def _experts(self, node: Node, about: Pass) -> None:
        y, x, routes = (self._slots.of(part) for part in (node, *node.inputs))
        self.mixtures.experts(y, x, routes, self._count(node, about), node)

    # ---- recurrences

    def _short_conv(self, node: Node, about: Pass) -> None:
        assert about.spans is not None
        y, x = (self._slots.of(part) for part in (node, *node.inputs))
        self._recurrences.short_conv(y, x, about.spans, node)

    def _scan(self, node: Node, about: Pass) -> None:
        assert about.spans is not None
        y, x, dt = (self._slots.of(part) for part in (node, *node.inputs))
        self._recurrences.scan(y, x, dt, about.spans, node)

    def _delta(self, node: Node, about: Pass) -> None:
        assert about.spans is not None
        inputs = tuple(self._slots.of(source) for source in node.inputs)
        self._recurrences.delta(self._slots.of(node), inputs, self._count(node, about), about.spans, node)

    # ---- attention

    def _attend(self, node: Node, about: Pass) -> None:
        spec, q, rows = node["spec"], node.inputs[0], self._count(node, about)
        where = about.rows, about.tables
        keys, values = self._pages.keys(spec.layer), self._pages.values(spec.layer)
        for source, target in zip(node.inputs[1:], (keys, values), strict=False):
            sizes = np.int32(source.width), np.int32(about.chunks)
            self._launches.each(
                "attention", "store_rows", rows * source.width, target, self._slots.of(source), *where, *sizes
            )
        row_bytes = 4 * spec.heads * about.chunks * (spec.value_width + 2)
        at_once = max(1, min(rows, PARTIAL_BYTES // row_bytes))
        partials = self._launches.scratch("partials", at_once * row_bytes)
        sinks = None if node["sinks"] is None else self._weights.vector(node["sinks"])
        shape = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width, about.chunks, spec.window, spec.causal
        for first in range(0, rows, at_once):
            count = min(at_once, rows - first)
            self._launches.groups(
                "attention", "attention_chunks", count * spec.heads * about.chunks, partials, self._slots.of(q), keys,
                values, *where, *map(np.int32, (first, *shape)), np.float32(spec.scale), np.float32(spec.softcap),
            )  # fmt: skip
            merged = node["sinks"] is not None, first, spec.heads, *shape[3:]
            self._launches.groups(
                "attention", "attention_merge", count * spec.heads, self._slots.of(node), partials, about.rows,
                partials if sinks is None else sinks, *map(np.int32, merged),
            )  # fmt: skip


VECTORS = {
    "linear": ("bias",),
    "norm": ("weight",),
    "layer_norm": ("weight", "bias"),
    "attend": ("sinks",),
    "route": ("bias", "factors"),
}
"""Values of nodes that are decoded to float32."""

OPS = frozenset(TABLES).union(
    ("given", "scale", "softcap", "add", "mul", "activate", "gated", "cut", "join", "outputs", "average", "tap"),
    ("norm", "layer_norm", "rope", "linear", "linear_heads", "route", "experts", "attend"),
    ("short_conv", "scan", "delta"),
)
"""What nodes there are kernels for."""
