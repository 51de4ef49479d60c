"""The definition of the arithmetic, in plain NumPy. Slow; used to check everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinetic.backends.base import Attention, Forward, State
from kinetic.backends.checks import check_given
from kinetic.backends.control_word import default_rounding
from kinetic.backends.identity import engine_digest
from kinetic.backends.program import Sequences
from kinetic.backends.reference.candidates import candidates
from kinetic.backends.reference.functions import exp32
from kinetic.backends.reference.ops import Caches, ReferenceOps
from kinetic.backends.states import StateStore
from kinetic.bits import F32
from kinetic.types import Batch, PackCache


class ReferenceProgram(Sequences[Caches]):
    """A model bound to the reference operations, with its float16 caches and its float32 states."""

    def __init__(self, forward: Forward, layers: Sequence[Attention], states: Sequence[State]) -> None:
        super().__init__(layers, Caches(layers), StateStore(states))
        self._forward = forward
        self._taps: dict[str, F32] = {}

    def run(self, batch: Batch, given: F32 | None = None, best: int = 0) -> F32:
        # What overflows becomes an infinity and is refused where a token is drawn; a warning would say it twice.
        ends = self._states.begin(batch)
        with default_rounding(), np.errstate(all="ignore"):
            ops = ReferenceOps(batch, self._pages, self._states, given)
            logits: F32 = self._forward(ops)
        check_given(ops.width_given, batch, given)
        self._states.end(ends)
        self._taps = ops.taps
        return logits

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> F32:
        return self.run(batch)

    def taps(self) -> dict[str, F32]:
        return self._taps

    def candidates(self, row: F32, k: int, floor: float) -> tuple[np.ndarray, F32]:
        return candidates(row, k, floor)

    def exp(self, x: F32) -> F32:
        return exp32(x)

    def close(self) -> None:
        self._pages = Caches(self._layers)


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
