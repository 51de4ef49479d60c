"""The definition of the arithmetic, in plain NumPy. Slow; used to check everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinetic.backends.base import Attention, Forward, Snapshot, State
from kinetic.backends.checks import check_given
from kinetic.backends.control_word import default_rounding
from kinetic.backends.identity import engine_digest
from kinetic.backends.reference.candidates import candidates
from kinetic.backends.reference.functions import exp32
from kinetic.backends.reference.ops import Cache, ReferenceOps
from kinetic.backends.states import StateStore, check_snapshot
from kinetic.bits import F32
from kinetic.types import Batch, PackCache


class ReferenceProgram:
    """A model bound to the reference operations, with its float16 caches and its float32 states."""

    def __init__(self, forward: Forward, layers: Sequence[Attention], states: Sequence[State]) -> None:
        self._forward = forward
        self._layers = layers
        self._states = StateStore(states)
        self._caches: dict[tuple[int, int], Cache] = {}
        self._taps: dict[str, F32] = {}

    can_keep = True

    @property
    def can_branch(self) -> bool:
        return not self._states.states

    def run(self, batch: Batch, given: F32 | None = None, best: int = 0) -> F32:
        # What overflows becomes an infinity and is refused where a token is drawn; a warning would say it twice.
        ends = self._states.begin(batch)
        with default_rounding(), np.errstate(all="ignore"):
            ops = ReferenceOps(batch, self._caches, self._states, given)
            logits: F32 = self._forward(ops)
        check_given(ops.width_given, batch, given)
        self._states.end(ends)
        self._taps = ops.taps
        return logits

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> F32:
        return self.run(batch)

    def taps(self) -> dict[str, F32]:
        return self._taps

    def length(self, sequence: int) -> int:
        return self._states.length(sequence)

    def truncate(self, sequence: int, length: int) -> int:
        kept = self._states.truncate(sequence, length)
        for key in [key for key in self._caches if key[0] == sequence]:
            if kept == 0:
                del self._caches[key]
            else:
                self._caches[key].keys[kept:] = np.nan
                self._caches[key].values[kept:] = np.nan
        return kept

    def mark(self, sequence: int) -> None:
        self._states.mark(sequence)

    def snapshot(self, sequence: int) -> Snapshot:
        length = self.length(sequence)
        caches = {spec.layer: self._caches.get((sequence, spec.layer), Cache(spec)) for spec in self._layers}
        keys = {layer: cache.keys[:length].copy() for layer, cache in caches.items()}
        values = {layer: cache.values[:length].copy() for layer, cache in caches.items()}
        return Snapshot(length, keys, values, self._states.copies(sequence))

    def restore(self, sequence: int, snapshot: Snapshot) -> None:
        check_snapshot(snapshot, self._layers)
        self._states.put(sequence, snapshot.length, snapshot.states)
        for spec in self._layers:
            cache = self._caches[sequence, spec.layer] = Cache(spec)
            cache.fill(snapshot.keys[spec.layer], snapshot.values[spec.layer])

    @property
    def state_bytes(self) -> int:
        return self._states.size

    def kept_bytes(self, count: int) -> int:
        size = 0
        for spec in self._layers:
            size += 2 * count * spec.kv_heads * (spec.head_dim + spec.value_width)
        return size

    def read_kept(self, sequence: int, start: int, count: int) -> np.ndarray:
        found = []
        for spec in self._layers:
            cache = self._caches[sequence, spec.layer]
            found += [cache.keys[start : start + count], cache.values[start : start + count]]
        return np.concatenate([np.zeros(0, np.uint8), *(part.reshape(-1).view(np.uint8) for part in found)])

    def write_kept(self, sequence: int, start: int, count: int, data: np.ndarray) -> None:
        for spec in self._layers:
            cache = self._caches.setdefault((sequence, spec.layer), Cache(spec)).begun(start)
            for name, width in (("keys", spec.head_dim), ("values", spec.value_width)):
                shape = (count, spec.kv_heads, width)
                size = 2 * count * spec.kv_heads * width
                part, data = data[:size].copy().view(np.float16).reshape(shape), data[size:]
                setattr(cache, name, np.concatenate([getattr(cache, name), part]))
            self._caches[sequence, spec.layer] = cache

    def read_states(self, sequence: int) -> np.ndarray:
        return self._states.copy(sequence)

    def stand(self, sequence: int, length: int, states: np.ndarray | None = None) -> None:
        self._states.stand(sequence, length, states)
        for key in [key for key in self._caches if key[0] == sequence]:
            self._caches[key] = self._caches[key].begun(length)

    def fork(self, source: int, target: int, length: int) -> None:
        self._states.fork(target, length)
        for sequence, layer in [key for key in self._caches if key[0] == source]:
            self._caches[target, layer] = self._caches[sequence, layer].begun(length)

    def take_over(self, source: int, target: int) -> None:
        self._states.take_over(source, target)
        for sequence, layer in [key for key in self._caches if key[0] == source]:
            self._caches[target, layer] = self._caches.pop((sequence, layer))

    def candidates(self, row: F32, k: int, floor: float) -> tuple[np.ndarray, F32]:
        return candidates(row, k, floor)

    def exp(self, x: F32) -> F32:
        return exp32(x)

    def close(self) -> None:
        self._caches.clear()


class ReferenceBackend:
    device_class = "reference"
    device_name = "NumPy"
    threads = 1

    def __init__(self) -> None:
        self.engine_id = f"reference:{engine_digest('reference')}"

    def load(
        self,
        forward: Forward,
        layers: Sequence[Attention],
        progress: Callable[[str], None] | None = None,
        packs: PackCache | None = None,
        states: Sequence[State] = (),
    ) -> ReferenceProgram:
        return ReferenceProgram(forward, layers, states)


def open_backend(*, threads: int = 0) -> ReferenceBackend:
    return ReferenceBackend()
