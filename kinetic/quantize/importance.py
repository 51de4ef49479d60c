"""How much each column of a weight matters: the mean squares that an importance matrix records.

Source: tools/quantize of llama.cpp b11434.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from kinetic.bits import F32
from kinetic.quantize import imatrix
from kinetic.quantize.imatrix import Sums


@dataclass(frozen=True, slots=True)
class Importance:
    """What a file says of each tensor: float32 [experts * K]."""

    path: str
    """As it was given: the name goes into the quantised file."""
    entries: dict[str, F32]
    dataset: str | None
    """The first of those that it was measured on."""
    chunks: int

    def only(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Importance:
        """Without the entries that have a part of ``exclude`` in their names, or have none of ``include``."""
        kept = {
            name: values
            for name, values in self.entries.items()
            if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
        }
        return Importance(self.path, kept, self.dataset, self.chunks)


def read(path: str | os.PathLike[str]) -> Importance:
    """Of a file in either format. Raises FileProblem and Malformed."""
    found = imatrix.read(path)
    is_old = found.chunk_size is None
    entries = {name: _means(sums, is_old) for name, sums in found.entries.items()}
    return Importance(found.path, entries, next(iter(found.datasets), None), found.chunks)


def _means(sums: Sums, is_old: bool) -> F32:
    """Each expert's sums over its count. Without a count: 1, or what the older format has."""
    squares, counts = sums.squares.reshape(len(sums.counts), -1), sums.counts.astype(np.float32)[:, None]
    without = squares if is_old else np.float32(1)
    means = np.where(counts > 0, squares / np.maximum(counts, np.float32(1)), without)
    return means.astype(np.float32).reshape(-1)
