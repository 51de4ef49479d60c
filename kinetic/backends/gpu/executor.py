"""Runs the nodes of a graph on a device, one after another: which kernels each takes, and in whose memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Rope
from kinetic.backends.gpu.attention import Attentions
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.gpu.device_states import DeviceStates
from kinetic.backends.gpu.expert_cache import ExpertOffload
from kinetic.backends.gpu.experts import Mixtures
from kinetic.backends.gpu.host_rows import TABLES, HostRows
from kinetic.backends.gpu.inputs import Inputs, Layout, Shape
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.pages import Pages
from kinetic.backends.gpu.products import HEADS, KINDS, Products, Several
from kinetic.backends.gpu.recordings import Recordings, Stretch
from kinetic.backends.gpu.recurrent import Recurrences
from kinetic.backends.gpu.slots import Slots
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import OUTPUT_ROWS, Node
from kinetic.backends.whole import whole_spans
from kinetic.bits import F32
from kinetic.errors import OutOfMemory
from kinetic.types import Batch


@dataclass
class Pass:
    """Sizes of a pass, and arrays that its kernels read. Launches are made of nothing else: they may be replayed for
    another batch of these sizes (docs/adr/0015)."""

    layout: Layout
    rows: int
    outputs: int

    @property
    def arrays(self) -> Mapping[str, Memory]:
        """By name: those of ``Attentions.arrays``, ``Recurrences.arrays`` and ``HostRows``; 'outputs' int32 [outputs];
        and 'means' int32 [outputs, 2], first row and rows of each one's sequence, where they are asked for."""
        return self.layout.memory


class Executor:
    """``run`` gives the last node's rows. All weights are on the device once this is made."""

    def __init__(
        self,
        device: Device,
        nodes: Sequence[Node],
        pages: Pages,
        states: DeviceStates,
        offload: ExpertOffload | None = None,
    ) -> None:
        self._device, self._nodes = device, nodes
        self._launches = Launches(device)
        self._inputs = Inputs(device)
        self._recordings = Recordings(device)
        self._host_rows = HostRows(nodes)
        self._slots = Slots(device, nodes, apart=self._host_rows.names)
        self._weights = DeviceWeights(device)
        self._products = Products(self._launches, self._weights)
        self._attentions = Attentions(self._launches, self._weights, pages)
        self.mixtures = Mixtures(self._launches, self._weights, self._products, nodes, offload)
        self._recurrences = Recurrences(self._launches, self._weights, states)
        self._averages = any(node.op == "average" for node in nodes)
        self._goes_on = any(node.op == "given" for node in nodes)
        self._steps: dict[str, Callable[[Node, Pass], None]] = {
            op: getattr(self, f"_{op}") for op in OPS if op not in FROM_HOST
        }
        self._stretches = [
            (is_recordable, list(part)) for is_recordable, part in groupby(self._own(nodes), self._is_recordable)
        ]
        self._last = [node for node in nodes if node.op != "tap"][-1]
        self._logits: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._seen: dict[str, F32] = {}
        try:
            for node in nodes:
                self._prepare(node)
        except BaseException:
            self.close()
            raise

    def _prepare(self, node: Node) -> None:
        """Copy what a node reads to the device, and build its products: not while an answer is waited for."""
        if node.op in ("linear", "linear_heads"):
            self._products.prepare(node["weight"], several=node.op == "linear_heads")
        elif node.op == "experts":
            self.mixtures.prepare(node)
        elif node.op == "attend":
            self._attentions.prepare(node["spec"])
        self._recurrences.prepare(node)
        for name in VECTORS.get(node.op, ()):
            if node[name] is not None:
                self._weights.vector(node[name])

    def close(self) -> None:
        """Nothing of it can be used any more, and nothing that it had on the device is held on to."""
        self.mixtures.close()
        self._steps.clear()  # they are this object's own methods
        self._stretches.clear()

    def _own(self, nodes: Sequence[Node]) -> list[Node]:
        """Those whose rows are made here."""
        return [node for node in nodes if node not in self._host_rows.names]

    def _is_recordable(self, node: Node) -> bool:
        """Whether its step asks for launches and copies only, the same ones in every pass of a shape."""
        return node.op != "tap" and (node.op != "experts" or self.mixtures.is_recordable(node))

    # ---- one pass

    def run(self, batch: Batch, given: F32 | None) -> tuple[F32, dict[str, F32]]:
        """Logits float32 [outputs, V], and what was tapped. Raises OutOfMemory."""
        self._seen = {}
        try:
            about = self._pass(batch, given)
            stretches = [
                Stretch(is_recordable, partial(self._run, own, about)) for is_recordable, own in self._stretches
            ]
            self._recordings.run(about.layout, stretches)
            return self._fetched(self._last, about), self._seen
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}: a shorter context, or fewer layers there (-ngl), takes less") from error

    def _run(self, nodes: Sequence[Node], about: Pass) -> None:
        """A stretch of the graph. It finds nothing of the one before but activations: that one may be replayed."""
        self._products.begin()
        for node in nodes:
            self._slots.begin(node, self._count(node, about))
            self._steps[node.op](node, about)

    def _pass(self, batch: Batch, given: F32 | None) -> Pass:
        """Room for a pass, and what it reads on the device. Raises OutOfMemory."""
        numbers = self._arrays(batch)
        count = len(batch.tokens)
        shapes: dict[str, Shape] = {name: (array.shape, array.dtype.type) for name, array in numbers.items()}
        layout = self._inputs.lay(shapes | self._host_rows.shapes(count))
        for name, array in numbers.items():
            layout.host[name][...] = array
        self._host_rows.fill(layout.host, batch, given)
        self._inputs.send(layout)
        for node, name in self._host_rows.names.items():
            self._slots.place(node, layout.memory[name])
        return Pass(layout, count, len(batch.outputs))

    def _arrays(self, batch: Batch) -> dict[str, NDArray[np.int32]]:
        """All that depends on a batch and is a number. Names and shapes say how kernels are launched. Raises
        OutOfMemory."""
        arrays = self._attentions.arrays(batch) | self._recurrences.arrays(batch)
        arrays["outputs"] = np.array(batch.outputs, np.int32)
        if self._averages:
            spans = whole_spans(batch, goes_on=self._goes_on)
            arrays["means"] = np.array([spans[batch.sequences[row]] for row in batch.outputs], np.int32).reshape(-1, 2)
        return arrays

    def _count(self, node: Node, about: Pass) -> int:
        """Rows of a node."""
        return about.outputs if node.rows == OUTPUT_ROWS else about.rows

    def _fetched(self, node: Node, about: Pass) -> F32:
        rows, width = self._count(node, about), node.width
        if rows == 0:
            return np.zeros((0, width), np.float32)
        if len(self._logits) < 4 * rows * width:
            self._logits = self._device.pinned(4 * rows * width)
        found = self._logits[: 4 * rows * width]
        self._device.read(self._slots.of(node), found)
        self._inputs.arrived()
        return found.view(np.float32).reshape(rows, width).copy()

    def _elements(self, name: str, node: Node, about: Pass, *more: Memory | np.generic) -> None:
        """A kernel of elementwise.cu: a node's elements from those of its inputs."""
        inputs = (self._slots.of(source) for source in node.inputs)
        self._launches.each(
            "elementwise", name, self._count(node, about) * node.width, self._slots.of(node), *inputs, *more
        )

    # ---- operations

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
        self._elements("take_rows", node, about, about.arrays["outputs"], np.int32(node.width))

    def _average(self, node: Node, about: Pass) -> None:
        self._elements("average_rows", node, about, about.arrays["means"], np.int32(node.width))

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
        memory = self._slots.of(node), self._slots.of(node.inputs[0]), about.arrays[self._host_rows.turned(rope)]
        self._launches.each("rope", "rope", count, *memory, *sizes)

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
        y, x = (self._slots.of(part) for part in (node, *node.inputs))
        self._recurrences.short_conv(y, x, about.arrays, node)

    def _scan(self, node: Node, about: Pass) -> None:
        y, x, dt = (self._slots.of(part) for part in (node, *node.inputs))
        self._recurrences.scan(y, x, dt, about.arrays, node)

    def _delta(self, node: Node, about: Pass) -> None:
        inputs = tuple(self._slots.of(source) for source in node.inputs)
        self._recurrences.delta(self._slots.of(node), inputs, self._count(node, about), about.arrays, node)

    # ---- attention

    def _attend(self, node: Node, about: Pass) -> None:
        out, q, *stored = (self._slots.of(part) for part in (node, *node.inputs))
        self._attentions.attend(out, q, stored, about.arrays, node)


VECTORS = {
    "linear": ("bias",),
    "norm": ("weight",),
    "layer_norm": ("weight", "bias"),
    "attend": ("sinks",),
    "route": ("bias", "factors"),
}
"""Values of nodes that are decoded to float32."""

FROM_HOST = (*TABLES, "given")

OPS = frozenset(FROM_HOST).union(
    ("scale", "softcap", "add", "mul", "activate", "gated", "cut", "join", "outputs", "average", "tap"),
    ("norm", "layer_norm", "rope", "linear", "linear_heads", "route", "experts", "attend"),
    ("short_conv", "scan", "delta"),
)
"""What nodes there are kernels for."""
