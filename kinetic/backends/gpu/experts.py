"""Mixtures of experts on a device, made of products: with all experts there, or with some at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Backend, Experts, Weight
from kinetic.backends.gpu.device import Memory
from kinetic.backends.gpu.expert_cache import Costs, ExpertCache, ExpertOffload, expert_bytes, measured, shares
from kinetic.backends.gpu.host_experts import HostExperts, cpu_backend
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.products import KINDS, OWN, SHARED, Products, Several
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.bits import F32
from kinetic.errors import UnsupportedModel

GATINGS = ("softmax", "sigmoid", "softmax_chosen")
"""As kernels/experts.cu counts them."""

MOST_EXPERTS = 1024
"""As kernels/experts.cu has room for."""


class _Rows(NamedTuple):
    """Rows of experts, each one expert of one row of activations: ``total`` of them, ``used`` of one row."""

    x: Memory
    kind: int
    total: int
    used: int
    numbers: Memory
    """Routes: which expert, for its biases."""
    slots: Memory
    """Routes: where in the matrices it lies."""
    node: Node | None
    """Whose rows x are, if they are those of a node."""


class _Off:
    """A mixture of which the device has some experts at a time."""

    def __init__(self, experts: Experts, slots: int) -> None:
        self.experts, self.slots = experts, slots
        self.there: Experts = experts
        """As many as there are slots, on the device."""
        self.cache = ExpertCache(slots)
        self.host: HostExperts | None = None


class Mixtures:
    """``offload`` says which mixtures have only some of their experts on the device."""

    def __init__(
        self,
        launches: Launches,
        weights: DeviceWeights,
        products: Products,
        nodes: Sequence[Node],
        offload: ExpertOffload | None = None,
    ) -> None:
        self._launches, self._weights, self._products = launches, weights, products
        self._device = launches.device
        self._offload = offload or ExpertOffload(layers=0)
        self._shares = shares(nodes, self._offload)
        self._off: dict[Node, _Off] = {}
        self._backend: Backend | None = None
        self._costs: Costs | None = None

    @property
    def host(self) -> Backend | None:
        """What computes a part of the experts, if there is such a thing."""
        return self._backend if any(off.host is not None for off in self._off.values()) else None

    @property
    def about(self) -> str:
        """What a device has of these mixtures, in a line; "" if it has all experts."""
        if not self._off:
            return ""
        counts = sorted({f"{off.slots} of {off.experts.up.shape[0]}" for off in self._off.values()})
        layers = f"{len(self._off)} layer{'s' * (len(self._off) > 1)}"
        said = f"{', '.join(counts)} experts of {layers} at a time: a missing one is copied"
        if self.host is None:
            return said
        if self._costs is None or not any(off.slots for off in self._off.values()):
            return said.removesuffix("is copied") + "runs on the CPU"
        size = max(expert_bytes(off.experts) for off in self._off.values())
        copy, row = (1000 * size * cost for cost in (self._costs.copy, self._costs.on_host(1)))
        return f"{said} ({copy:.2f} ms), or runs on the CPU ({row:.2f} ms a row)"

    def is_recordable(self, node: Node) -> bool:
        """Whether a node needs nothing of the host while it runs. Where experts are missing it reads the routes."""
        return node not in self._shares

    def prepare(self, node: Node) -> None:
        """Copy what a mixture reads to the device, or make room for it. Raises UnsupportedModel, OutOfMemory."""
        experts: Experts = node["experts"]
        if experts.up.shape[0] > MOST_EXPERTS:
            raise UnsupportedModel(
                f"'{experts.up.name}' has {experts.up.shape[0]} experts, and devices have room to choose from "
                f"{MOST_EXPERTS}: run the model with --device cpu",
                name="NO_DEVICE_KERNEL",
            )
        if node in self._shares:
            self._prepare_some(node, self._shares[node])
        else:
            for weight in _matrices(experts):
                self._products.prepare(weight, several=True)
        for bias in experts[4:]:
            if bias is not None:
                self._weights.vector(bias)

    def _prepare_some(self, node: Node, slots: int) -> None:
        """Slots for experts; and, unless a copy is always cheaper, what runs them on the CPU."""
        experts: Experts = node["experts"]
        off = self._off[node] = _Off(experts, slots)
        for weight in _matrices(experts):
            self._weights.check(weight)
        if slots:
            gate = None if experts.gate is None else self._weights.slots(experts.gate, slots)
            up, down = (self._weights.slots(weight, slots) for weight in (experts.up, experts.down))
            off.there = experts._replace(gate=gate, up=up, down=down)
            for weight in _matrices(off.there):
                self._products.prepare(weight, several=True)
            if self._offload.clock is None:
                return
        if self._costs is None or self._costs.on_host(1) < self._costs.copy:
            self._backend = self._backend or (self._offload.host or cpu_backend)()
            off.host = HostExperts(experts, self._backend, self._offload.progress)
            if self._costs is None and self._offload.clock is not None:
                self._costs = self._measured(self._offload.clock, off, off.host)
                if self._costs.on_host(1) >= self._costs.copy:
                    off.host.close()
                    off.host = None
        off.cache = ExpertCache(slots, self._costs)

    def _measured(self, clock: Callable[[], float], off: _Off, host: HostExperts) -> Costs:
        count, _, width = off.experts.up.shape

        def copy(number: int) -> None:
            self._copy(off, number % count, 0)
            self._device.finish()

        def run(number: int, rows: int) -> None:
            host.run(np.ones((rows, width), np.float32), np.full(rows, number % count))

        run(0, 1)  # its threads begin with the first pass
        return measured(clock, expert_bytes(off.experts), copy if off.slots else None, run)

    def close(self) -> None:
        for off in self._off.values():
            if off.host is not None:
                off.host.close()
        self._off = {}

    # ---- one pass

    def route(self, routes: Memory, logits: Memory, rows: int, node: Node) -> None:
        """See ``base.Ops.route``."""
        routing, sides = node["routing"], (node["bias"], node["factors"])
        memory = (routes if side is None else self._weights.vector(side) for side in sides)
        there = (side is not None for side in sides)
        gating = GATINGS.index(routing.gating)
        numbers = map(np.int32, (*there, node.inputs[0].width, routing.used, gating, routing.normalised))
        groups = np.float32(routing.scale), np.int32(routing.groups), np.int32(routing.used_groups)
        self._launches.groups("experts", "route", rows, routes, logits, *memory, *numbers, *groups)

    def experts(self, y: Memory, x: Memory, routes: Memory, rows: int, node: Node) -> None:
        """See ``base.Ops.experts``. Each expert of each row is a row of its own until they are added."""
        if rows == 0:
            return
        used = node.inputs[1].width // 2
        if node in self._off:
            made = self._in_rounds(self._off[node], x, routes, rows, node)
        else:
            asked = _Rows(x, SHARED, rows * used, used, routes, routes, node.inputs[0])
            made = self._made(node["experts"], asked)
        sizes = np.int32(used), np.int32(node.width)
        self._launches.each("experts", "weigh", rows * node.width, y, made, routes, *sizes)

    def _made(self, experts: Experts, rows: _Rows) -> Memory:
        """What each makes, before it is weighted: [total, N]."""
        count, hidden = rows.total, experts.up.shape[1]
        up = self._product("up", rows, experts.up, experts.up_bias)
        act = self._launches.scratch("act", 4 * count * hidden)
        kind = np.int32(KINDS.index(experts.activation))
        if experts.gate is None:
            self._launches.each("elementwise", "activate_rows", count * hidden, act, up, kind)
        else:
            gate = self._product("gate", rows, experts.gate, experts.gate_bias)
            widths = np.int32(hidden), np.int32(hidden)
            self._launches.each("elementwise", "gate_rows", count * hidden, act, gate, up, kind, *widths)
        return self._product("down", rows._replace(x=act, kind=OWN, node=None), experts.down, experts.down_bias)

    def _product(self, name: str, rows: _Rows, weight: Weight, bias: Weight | None) -> Memory:
        width = weight.shape[1]
        out = self._launches.scratch(name, 4 * rows.total * width)
        self._products.product(out, rows.x, rows.total, weight, Several(rows.slots, rows.used, rows.kind), rows.node)
        if bias is not None:
            vector, sizes = self._weights.vector(bias), (np.int32(rows.used), np.int32(width))
            self._launches.each("experts", "add_expert_bias", rows.total * width, out, vector, rows.numbers, *sizes)
        return out

    # ---- with some experts at a time

    def _in_rounds(self, off: _Off, x: Memory, routes: Memory, rows: int, node: Node) -> Memory:
        """As ``_made``. In each round the device computes for those rows whose experts it then has; the CPU's rows,
        if there are any, are computed behind them, while the device is at work."""
        used, source = node.inputs[1].width // 2, node.inputs[0]
        found = np.empty((rows, 2 * used), np.float32)
        self._device.read(routes, found)
        chosen = found[:, :used].astype(np.int64).reshape(-1)
        numbers, counts = np.unique(chosen, return_counts=True)
        groups, host = off.cache.plan(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        if len(groups) == 1 and not host:
            found[:, :used] = self._brought(off, groups[0])[chosen].reshape(rows, used)
            return self._made(off.there, _Rows(x, SHARED, rows * used, used, routes, self._put("slots", found), source))
        made = self._launches.scratch("pairs made", 4 * rows * used * node.width)
        behind = np.flatnonzero(np.isin(chosen, host))
        given = self._rows(x, rows, source.width)[behind // used] if host else None
        for group in groups:
            pairs = np.flatnonzero(np.isin(chosen, group))
            slots = self._brought(off, group)
            which = self._put("pairs", pairs.astype(np.int32))
            part = self._some(x, which, used, source.width, chosen[pairs], slots[chosen[pairs]])
            self._place(made, self._made(off.there, part), which, len(pairs), node.width)
        if given is not None:
            assert off.host is not None
            rows_made = self._put("from host", off.host.run(given, chosen[behind]))
            self._place(made, rows_made, self._put("pairs", behind.astype(np.int32)), len(behind), node.width)
        return made

    def _brought(self, off: _Off, group: Sequence[int]) -> NDArray[np.int64]:
        """Slots by expert, for those of a group, which then lie there."""
        slots = np.zeros(off.experts.up.shape[0], np.int64)
        for number, slot in off.cache.bring(group, lambda number, slot: self._copy(off, number, slot)).items():
            slots[number] = slot
        return slots

    def _copy(self, off: _Off, number: int, slot: int) -> None:
        for weight, there in zip(_matrices(off.experts), _matrices(off.there), strict=True):
            self._weights.put(there, slot, weight, number)

    def _some(self, x: Memory, pairs: Memory, used: int, width: int, numbers: np.ndarray, slots: np.ndarray) -> _Rows:
        """Pair p is expert p % used of row p / used. Each becomes a row with one expert."""
        count = len(numbers)
        routes = np.ones((2, count, 2), np.float32)
        routes[0, :, 0], routes[1, :, 0] = numbers, slots
        rows = self._launches.scratch("pairs given", 4 * count * width)
        self._launches.each("experts", "take_pairs", count * width, rows, x, pairs, np.int32(used), np.int32(width))
        by_number, by_slot = self._put("numbers", routes[0]), self._put("slots", routes[1])
        return _Rows(rows, OWN, count, 1, by_number, by_slot, None)

    def _place(self, made: Memory, rows: Memory, pairs: Memory, count: int, width: int) -> None:
        self._launches.each("experts", "put_pairs", count * width, made, rows, pairs, np.int32(width))

    def _put(self, name: str, values: np.ndarray) -> Memory:
        """Values on the device, until the same name is used again."""
        memory = self._launches.scratch(name, values.nbytes)
        self._device.write(memory, np.ascontiguousarray(values))
        return memory

    def _rows(self, x: Memory, rows: int, width: int) -> F32:
        out = np.empty((rows, width), np.float32)
        self._device.read(x, out)
        return out


def _matrices(experts: Experts) -> list[Weight]:
    return [weight for weight in experts[:3] if weight is not None]
