"""``Ops`` in plain NumPy, run at once. Every other backend is right only if it is bit-equal to this one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends import rope_tables
from kinetic.backends.base import Attention, Delta, Experts, Rope, Routing, Scan, State, Weight
from kinetic.backends.checks import check_given
from kinetic.backends.reference.attention import attend_row
from kinetic.backends.reference.delta import delta
from kinetic.backends.reference.experts import matrix, mixture, route
from kinetic.backends.reference.functions import ACTIVATIONS, GATES, fma32, softcap, strided_sum, strided_sum_of_squares
from kinetic.backends.reference.linear import linear
from kinetic.backends.reference.recurrent import short_conv_row
from kinetic.backends.reference.scan import scan_row
from kinetic.backends.states import StateStore
from kinetic.bits import F32, f32_to_f16
from kinetic.formats import by_type, check_scales
from kinetic.types import Batch, lengths

F16 = NDArray[np.float16]
U8 = NDArray[np.uint8]


class Cache:
    """Keys float16 [positions, G, D] and values [positions, G, value width] of one layer of one sequence."""

    def __init__(self, spec: Attention) -> None:
        self.keys: F16 = np.zeros((0, spec.kv_heads, spec.head_dim), np.float16)
        self.values: F16 = np.zeros((0, spec.kv_heads, spec.value_width), np.float16)

    def store(self, position: int, key: F32, value: F32) -> None:
        if position >= len(self.keys):
            grown = max(64, 2 * (position + 1))
            self.keys = _grow(self.keys, grown)
            self.values = _grow(self.values, grown)
        self.keys[position] = f32_to_f16(key)
        self.values[position] = f32_to_f16(value)

    def fill(self, keys: F16, values: F16) -> None:
        """Makes these, from position 0 on, all there is."""
        self.keys, self.values = keys.copy(), values.copy()

    def begun(self, length: int) -> Cache:
        """One of its own with the first ``length`` positions."""
        new = copy.copy(self)
        new.keys, new.values = self.keys[:length].copy(), self.values[:length].copy()
        return new


def _grow(array: F16, length: int) -> F16:
    out = np.full((length, *array.shape[1:]), np.nan, np.float16)
    out[: len(array)] = array
    return out


class Caches:
    """Keys and values of all sequences: see ``program.KeysAndValues``."""

    def __init__(self, layers: Sequence[Attention]) -> None:
        self._layers = layers
        self._caches: dict[tuple[int, int], Cache] = {}

    def at(self, sequence: int, spec: Attention) -> Cache:
        return self._caches.setdefault((sequence, spec.layer), Cache(spec))

    def _layers_of(self, sequence: int) -> list[int]:
        return [layer for owner, layer in self._caches if owner == sequence]

    def truncate(self, sequence: int, length: int) -> None:
        for layer in self._layers_of(sequence):
            if length == 0:
                del self._caches[sequence, layer]
            else:
                self._caches[sequence, layer].keys[length:] = np.nan
                self._caches[sequence, layer].values[length:] = np.nan

    def read(self, sequence: int, length: int) -> tuple[dict[int, F16], dict[int, F16]]:
        caches = {spec.layer: self.at(sequence, spec).begun(length) for spec in self._layers}
        keys = {layer: cache.keys for layer, cache in caches.items()}
        return keys, {layer: cache.values for layer, cache in caches.items()}

    def write(self, sequence: int, length: int, keys: Mapping[int, F16], values: Mapping[int, F16]) -> None:
        self.truncate(sequence, 0)
        for spec in self._layers:
            self.at(sequence, spec).fill(keys[spec.layer], values[spec.layer])

    def kept_bytes(self, count: int) -> int:
        size = 0
        for spec in self._layers:
            size += 2 * count * spec.kv_heads * (spec.head_dim + spec.value_width)
        return size

    def read_block(self, sequence: int, start: int, count: int) -> U8:
        found = []
        for spec in self._layers:
            cache = self._caches[sequence, spec.layer]
            found += [cache.keys[start : start + count], cache.values[start : start + count]]
        return np.concatenate([np.zeros(0, np.uint8), *(part.reshape(-1).view(np.uint8) for part in found)])

    def write_block(self, sequence: int, start: int, count: int, data: U8) -> None:
        for spec in self._layers:
            cache = self.at(sequence, spec).begun(start)
            for name, width in (("keys", spec.head_dim), ("values", spec.value_width)):
                shape = (count, spec.kv_heads, width)
                size = 2 * count * spec.kv_heads * width
                part, data = data[:size].copy().view(np.float16).reshape(shape), data[size:]
                setattr(cache, name, np.concatenate([getattr(cache, name), part]))
            self._caches[sequence, spec.layer] = cache

    def fork(self, source: int, target: int, length: int) -> None:
        for layer in self._layers_of(source):
            self._caches[target, layer] = self._caches[source, layer].begun(length)

    def take_over(self, source: int, target: int) -> None:
        for layer in self._layers_of(source):
            self._caches[target, layer] = self._caches.pop((source, layer))


class ReferenceOps:
    """One forward pass of ``batch`` over ``caches`` and the recurrent states."""

    def __init__(self, batch: Batch, caches: Caches, states: StateStore, given: F32 | None = None) -> None:
        self.batch = batch
        self.rows_given = given
        self.width_given = 0
        self.caches = caches
        self.states = states
        self.taps: dict[str, F32] = {}

    def embed(self, table: Weight) -> F32:
        fmt = by_type(table.ggml_type, table.name)
        check_scales(fmt, table.data, table.name)
        return fmt.decode(table.data[np.array(self.batch.tokens, np.int64)])

    def positions(self, table: Weight) -> F32:
        fmt = by_type(table.ggml_type, table.name)
        check_scales(fmt, table.data, table.name)
        return fmt.decode(table.data[np.array(self.batch.positions, np.int64)])

    def first_row(self, table: Weight) -> F32:
        fmt = by_type(table.ggml_type, table.name)
        check_scales(fmt, table.data, table.name)
        return np.repeat(fmt.decode(table.data[:1]), len(self.batch.tokens), axis=0)

    def scale(self, x: F32, factor: float) -> F32:
        return x * np.float32(factor)

    def softcap(self, x: F32, cap: float) -> F32:
        return softcap(x, cap)

    def rms_norm(self, x: F32, weight: Weight, eps: float) -> F32:
        w = _decoded(weight).reshape(weight.shape)
        width = weight.shape[-1]
        groups = x.reshape(len(x), x.shape[1] // width, width)  # -1 would be ambiguous where no row is wanted
        with np.errstate(all="ignore"):
            mean = strided_sum_of_squares(groups) / np.float32(width)
            r = np.float32(1) / np.sqrt(mean + np.float32(eps))
            return ((groups * r[..., None]) * w).reshape(x.shape)

    def layer_norm(self, x: F32, weight: Weight, bias: Weight | None, eps: float) -> F32:
        w = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
        b = np.zeros_like(w) if bias is None else by_type(bias.ggml_type, bias.name).decode(bias.data).reshape(-1)
        with np.errstate(all="ignore"):
            n = np.float32(len(w))
            centred = x - (strided_sum(x) / n)[:, None]
            variance = strided_sum_of_squares(centred) / n
            r = np.float32(1) / np.sqrt(variance + np.float32(eps))
            return fma32(centred * r[:, None], w, b)

    def linear(self, x: F32, weight: Weight, bias: Weight | None = None) -> F32:
        y = linear(x, weight)
        return y if bias is None else y + _decoded(bias)

    def linear_heads(self, x: F32, weight: Weight) -> F32:
        heads, _, width = weight.shape
        parts = [linear(x[:, h * width : (h + 1) * width], matrix(weight, h)) for h in range(heads)]
        return np.concatenate(parts, axis=1)

    def cut(self, x: F32, heads: int, first: int, count: int) -> F32:
        parts = x.reshape(len(x), heads, x.shape[1] // heads)[:, :, first : first + count]
        return parts.reshape(len(x), heads * count)

    def join(self, x: F32, y: F32, heads: int, shared: bool = False) -> F32:
        width = x.shape[1] // heads
        other = y.shape[1] if shared else y.shape[1] // heads
        behind = np.broadcast_to(y.reshape(len(y), 1 if shared else heads, other), (len(y), heads, other))
        both = np.concatenate([x.reshape(len(x), heads, width), behind], axis=2)
        return both.reshape(len(x), heads * (width + other))

    def add(self, x: F32, y: F32) -> F32:
        return x + y

    def mul(self, x: F32, y: F32) -> F32:
        with np.errstate(all="ignore"):
            return x * y

    def activate(self, x: F32, activation: str) -> F32:
        return ACTIVATIONS[activation](x)

    def gated(self, gate: F32, up: F32, activation: str) -> F32:
        with np.errstate(all="ignore"):
            return GATES[activation](gate, up)

    def route(self, logits: F32, routing: Routing, bias: Weight | None = None, factors: Weight | None = None) -> F32:
        return route(logits, routing, *(None if side is None else _decoded(side) for side in (bias, factors)))

    def experts(self, x: F32, routes: F32, experts: Experts) -> F32:
        return mixture(x, routes, experts)

    def rope(self, x: F32, rope: Rope, head_dim: int) -> F32:
        heads = x.reshape(len(x), -1, head_dim).copy()
        half = len(rope.frequencies)
        first, end = rope.first, rope.first + 2 * half
        even = slice(first, end, 2) if rope.interleaved else slice(first, first + half)
        odd = slice(first + 1, end, 2) if rope.interleaved else slice(first + half, end)
        for t, position in enumerate(self.batch.positions):
            cos, sin = (part[0] for part in rope_tables.table(rope, position, 1))
            e, o = heads[t, :, even].copy(), heads[t, :, odd].copy()
            with np.errstate(all="ignore"):
                heads[t, :, even] = fma32(e, cos, -(o * sin))
                heads[t, :, odd] = fma32(e, sin, o * cos)
        return heads.reshape(x.shape)

    def attend(self, q: F32, k: F32 | None, v: F32 | None, spec: Attention, sinks: Weight | None = None) -> F32:
        out = np.zeros((len(q), spec.heads, spec.value_width), np.float32)
        drains = None if sinks is None else _decoded(sinks)
        rows = list(zip(self.batch.sequences, self.batch.positions, strict=True))
        for t, (sequence, position) in enumerate(rows):
            for branch in (sequence, *(self.batch.also[t] if self.batch.also else ())):
                cache = self.caches.at(branch, spec)
                if k is not None and v is not None:
                    cache.store(position, k[t].reshape(spec.kv_heads, -1), v[t].reshape(spec.kv_heads, -1))
        ends = lengths(self.batch)
        for t, (sequence, position) in enumerate(rows):
            cache, end = self.caches.at(sequence, spec), position + 1 if spec.causal else ends[sequence]
            head = q[t].reshape(spec.heads, spec.head_dim)
            out[t] = attend_row(head, cache.keys[:end], cache.values[:end], position, spec, drains)
        return out.reshape(len(q), spec.heads * spec.value_width)

    def short_conv(self, x: F32, weight: Weight, bias: Weight | None, state: State, activation: str) -> F32:
        taps = _decoded(weight).reshape(weight.shape)
        offsets = None if bias is None else _decoded(bias)
        out = np.zeros_like(x)
        for t, sequence in enumerate(self.batch.sequences):
            out[t] = short_conv_row(x[t], taps, offsets, self.states.view(sequence, state), activation)
        return out

    def scan(self, x: F32, dt: F32, spec: Scan, state: State) -> F32:
        a, d, bias = (_decoded(weight) for weight in (spec.a, spec.d, spec.dt_bias))
        inner = spec.heads * spec.head_dim
        with np.errstate(all="ignore"):
            dt = dt + bias
        out = np.zeros((len(x), inner), np.float32)
        for t, sequence in enumerate(self.batch.sequences):
            b, c = x[t, inner:].reshape(2, spec.groups, spec.size)
            heads, own = x[t, :inner].reshape(spec.heads, spec.head_dim), self.states.view(sequence, state)
            out[t] = scan_row(heads, b, c, dt[t], own, a, d).reshape(-1)
        return out

    def delta(self, q: F32, k: F32, v: F32, gate: F32, beta: F32, spec: Delta) -> F32:
        states = [self.states.view(sequence, spec.state) for sequence in self.batch.sequences]
        return delta(q, k, v, gate, beta, spec, _decoded(spec.a), _decoded(spec.bias), states)

    def given(self, width: int) -> F32:
        self.width_given = width
        check_given(width, self.batch, self.rows_given)
        assert self.rows_given is not None
        return self.rows_given

    def outputs(self, x: F32) -> F32:
        return x[np.array(self.batch.outputs, np.int64)]

    def average(self, x: F32) -> F32:
        sequences = np.array(self.batch.sequences)
        out = np.zeros((len(self.batch.outputs), x.shape[1]), np.float32)
        with np.errstate(all="ignore"):
            for number, output in enumerate(self.batch.outputs):
                rows = x[sequences == sequences[output]]
                for row in rows:
                    out[number] += row
                out[number] /= np.float32(len(rows))
        return out

    def tap(self, x: F32, name: str) -> F32:
        self.taps[name] = x.copy()
        return x


def _decoded(weight: Weight) -> F32:
    """float32 of all elements of a weight, one after another."""
    return by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
