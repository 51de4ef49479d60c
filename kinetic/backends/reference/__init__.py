"""The definition of the arithmetic, in plain NumPy. Slow; used to check everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinetic.backends.base import Attention, Forward
from kinetic.backends.control_word import default_rounding
from kinetic.backends.identity import engine_digest
from kinetic.backends.reference.candidates import candidates
from kinetic.backends.reference.functions import exp32
from kinetic.backends.reference.ops import Cache, ReferenceOps
from kinetic.bits import F32
from kinetic.types import Batch, PackCache


class ReferenceProgram:
    """A model bound to the reference operations, with its float16 caches."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._caches: dict[tuple[int, int], Cache] = {}
        self._taps: dict[str, F32] = {}

    can_branch = True

    def run(self, batch: Batch) -> F32:
        # What overflows becomes an infinity and is refused where a token is drawn; a warning would say it twice.
        with default_rounding(), np.errstate(all="ignore"):
            ops = ReferenceOps(batch, self._caches)
            logits: F32 = self._forward(ops)
        self._taps = ops.taps
        return logits

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None) -> F32:
        return self.run(batch)

    def taps(self) -> dict[str, F32]:
        return self._taps

    def truncate(self, sequence: int, length: int) -> int:
        for key in [key for key in self._caches if key[0] == sequence]:
            if length == 0:
                del self._caches[key]
            else:
                self._caches[key].keys[length:] = np.nan
                self._caches[key].values[length:] = np.nan
        return length

    def fork(self, source: int, target: int, length: int) -> None:
        for sequence, layer in [key for key in self._caches if key[0] == source]:
            self._caches[target, layer] = self._caches[sequence, layer].begun(length)

    def take_over(self, source: int, target: int) -> None:
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
    ) -> ReferenceProgram:
        return ReferenceProgram(forward)


def open_backend(*, threads: int = 0) -> ReferenceBackend:
    return ReferenceBackend()
