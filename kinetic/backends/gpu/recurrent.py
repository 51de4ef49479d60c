"""Recurrences on a device, over states that stay there (device_states.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import ACTIVATIONS, Delta, Scan, State
from kinetic.backends.gpu.device import Memory
from kinetic.backends.gpu.device_states import DeviceStates
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.types import Batch

Arrays = Mapping[str, Memory]


class Recurrences:
    """Methods take the memory of the result, of the inputs, and of a pass's arrays. All rows of a batch take part."""

    def __init__(self, launches: Launches, weights: DeviceWeights, states: DeviceStates) -> None:
        self._launches, self._weights, self._states = launches, weights, states
        self._sequences = 0

    def arrays(self, batch: Batch) -> dict[str, NDArray[np.int32]]:
        """'order' and 'spans' of kernels/recurrent.cu, where there are states; those are on the device then. Raises
        OutOfMemory."""
        if not self._states.states:
            return {}
        rows: dict[int, list[int]] = {}
        for t, sequence in enumerate(batch.sequences):
            rows.setdefault(sequence, []).append(t)
        spans: list[tuple[int, int, int]] = []
        order: list[int] = []
        for own, place in zip(rows.values(), self._states.places(rows), strict=True):
            spans.append((len(order), len(own), place))
            order += own
        self._sequences = len(spans)
        return {"order": np.array(order, np.int32), "spans": np.array(spans, np.int32)}

    def prepare(self, node: Node) -> None:
        """Copy the vectors that a node reads to the device."""
        spec = node.values.get("spec")
        if node.op == "short_conv":
            vectors = (node["weight"], *([] if node["bias"] is None else [node["bias"]]))
        elif isinstance(spec, Scan):
            vectors = (spec.a, spec.d, spec.dt_bias)
        elif isinstance(spec, Delta):
            vectors = (spec.a, spec.bias)
        else:
            return
        for weight in vectors:
            self._weights.vector(weight)

    def _each(self, name: str, arrays: Arrays, node: Node, state: State, *arguments: Memory | np.generic) -> None:
        """A kernel whose lanes own a channel of a sequence each."""
        where = np.int32(self._states.size // 4), np.int32(self._states.offset(state) // 4)
        memory = self._states.arena, arrays["order"], arrays["spans"], *where
        self._launches.each("recurrent", name, self._sequences * node.width, *memory, *arguments)

    def short_conv(self, y: Memory, x: Memory, arrays: Arrays, node: Node) -> None:
        weight, bias = node["weight"], node["bias"]
        taps = self._weights.vector(weight)
        kind = ACTIVATIONS.index(node["activation"]) if node["activation"] else -1
        numbers = map(np.int32, (bias is not None, kind, *weight.shape))
        sides = taps, taps if bias is None else self._weights.vector(bias)
        self._each("short_conv", arrays, node, node["state"], y, x, *sides, *numbers)

    def scan(self, y: Memory, x: Memory, dt: Memory, arrays: Arrays, node: Node) -> None:
        spec: Scan = node["spec"]
        vectors = map(self._weights.vector, (spec.a, spec.d, spec.dt_bias))
        numbers = map(np.int32, (spec.heads, spec.head_dim, spec.groups, spec.size))
        self._each("scan", arrays, node, node["state"], y, x, dt, *vectors, *numbers)

    def delta(self, y: Memory, inputs: tuple[Memory, ...], rows: int, arrays: Arrays, node: Node) -> None:
        spec: Delta = node["spec"]
        q, k, *rest = inputs
        groups, eps = rows * spec.key_heads, np.float32(spec.eps)
        normed = []
        for name, source, factor in (("normed q", q, 1 / math.sqrt(spec.width)), ("normed k", k, 1.0)):
            normed.append(self._launches.scratch(name, 4 * groups * spec.width))
            numbers = np.int32(spec.width), eps, np.float32(factor)
            self._launches.groups("recurrent", "l2_norm", groups, normed[-1], source, *numbers)
        vectors = map(self._weights.vector, (spec.a, spec.bias))
        sizes = map(np.int32, (spec.heads, spec.key_heads, spec.width))
        self._each("delta", arrays, node, spec.state, y, *normed, *rest, *vectors, *sizes)
