"""Experts that are computed on the CPU, for a device that does not have them: a program of one mixture and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kinetic.backends import open_backend
from kinetic.backends.base import Array, Backend, Experts, Ops, Weight
from kinetic.bits import F32
from kinetic.types import Batch

ROUTE = 2
"""Numbers behind a row's activations: an expert, and the weight 1, by which a product changes no bit."""


def cpu_backend() -> Backend:
    return open_backend("cpu")


class HostExperts:
    """The matrices are packed as for a model on the CPU. Their bytes in the file stay in memory, to be copied from."""

    def __init__(self, experts: Experts, backend: Backend, progress: Callable[[str], None] | None = None) -> None:
        width = experts.up.shape[2]
        parts: dict[str, Any] = {
            name: part._replace(release=_keep) for name, part in experts._asdict().items() if isinstance(part, Weight)
        }
        kept = experts._replace(**parts)

        def forward(ops: Ops) -> Array:
            rows = ops.given(width + ROUTE)
            return ops.experts(ops.cut(rows, 1, 0, width), ops.cut(rows, 1, width, ROUTE), kept)

        self._program = backend.load(forward, (), progress)

    def run(self, x: F32, numbers: np.ndarray) -> F32:
        """What expert ``numbers[t]`` makes of row t of x [T, K]: [T, N]."""
        count = len(x)
        given = np.ones((count, x.shape[1] + ROUTE), np.float32)
        given[:, : x.shape[1]], given[:, x.shape[1]] = x, numbers
        rows = tuple(range(count))
        return self._program.run(Batch((0,) * count, rows, (0,) * count, rows), given)

    def close(self) -> None:
        self._program.close()


def _keep(offset: int, length: int) -> None:
    """They will be read again."""
