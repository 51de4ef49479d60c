"""Recurrences on a device. Their states stay on the host between passes, where marks and snapshots are."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kinetic.backends.base import ACTIVATIONS, Delta, Scan, State
from kinetic.backends.gpu.device import Memory
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.backends.states import StateStore
from kinetic.types import Batch


class Spans(NamedTuple):
    """The rows of each sequence of a batch: ``order`` and ``spans`` of kernels/recurrent.cu."""

    sequences: tuple[int, ...]
    order: Memory
    spans: Memory


class Recurrences:
    """Methods take the memory of the result and of the inputs. All rows of a batch take part."""

    def __init__(self, launches: Launches, weights: DeviceWeights, states: StateStore) -> None:
        self._launches, self._weights, self._states = launches, weights, states
        self._device = launches.device

    def spans(self, batch: Batch) -> Spans:
        rows: dict[int, list[int]] = {}
        for t, sequence in enumerate(batch.sequences):
            rows.setdefault(sequence, []).append(t)
        order = np.array([t for own in rows.values() for t in own], np.int32)
        counts = [len(own) for own in rows.values()]
        firsts = np.cumsum([0, *counts[:-1]])  # exact: integers
        spans = np.array([*zip(firsts, counts, strict=True)], np.int32)
        return Spans(tuple(rows), self._device.upload(order), self._device.upload(spans))

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

    def _taken(self, state: State, spans: Spans) -> Memory:
        """The states of the batch's sequences on the device, one after another."""
        memory = self._launches.scratch("states", 4 * state.size * len(spans.sequences))
        for number, sequence in enumerate(spans.sequences):
            self._device.write(memory, self._states.view(sequence, state), 4 * state.size * number)
        return memory

    def _put_back(self, state: State, spans: Spans, memory: Memory) -> None:
        for number, sequence in enumerate(spans.sequences):
            self._device.read(memory, self._states.view(sequence, state), 4 * state.size * number)

    def short_conv(self, y: Memory, x: Memory, spans: Spans, node: Node) -> None:
        state, weight, bias = node["state"], node["weight"], node["bias"]
        memory, taps = self._taken(state, spans), self._weights.vector(weight)
        kind = ACTIVATIONS.index(node["activation"]) if node["activation"] else -1
        numbers = map(np.int32, (bias is not None, kind, *weight.shape))
        sides = taps, taps if bias is None else self._weights.vector(bias)
        count = len(spans.sequences) * node.width
        self._launches.each("recurrent", "short_conv", count, y, x, memory, *spans[1:], *sides, *numbers)
        self._put_back(state, spans, memory)

    def scan(self, y: Memory, x: Memory, dt: Memory, spans: Spans, node: Node) -> None:
        spec: Scan = node["spec"]
        memory = self._taken(node["state"], spans)
        vectors = map(self._weights.vector, (spec.a, spec.d, spec.dt_bias))
        numbers = map(np.int32, (spec.heads, spec.head_dim, spec.groups, spec.size))
        count = len(spans.sequences) * node.width
        self._launches.each("recurrent", "scan", count, y, x, dt, memory, *spans[1:], *vectors, *numbers)
        self._put_back(node["state"], spans, memory)

    def delta(self, y: Memory, inputs: tuple[Memory, ...], rows: int, spans: Spans, node: Node) -> None:
        spec: Delta = node["spec"]
        q, k, *rest = inputs
        groups, eps = rows * spec.key_heads, np.float32(spec.eps)
        normed = []
        for name, source, factor in (("normed q", q, 1 / math.sqrt(spec.width)), ("normed k", k, 1.0)):
            normed.append(self._launches.scratch(name, 4 * groups * spec.width))
            numbers = np.int32(spec.width), eps, np.float32(factor)
            self._launches.groups("recurrent", "l2_norm", groups, normed[-1], source, *numbers)
        memory = self._taken(spec.state, spans)
        vectors = map(self._weights.vector, (spec.a, spec.bias))
        sizes = map(np.int32, (spec.heads, spec.key_heads, spec.width))
        count = len(spans.sequences) * node.width
        self._launches.each("recurrent", "delta", count, y, *normed, *rest, memory, *spans[1:], *vectors, *sizes)
        self._put_back(spec.state, spans, memory)
