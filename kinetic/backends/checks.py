"""What every backend asks of a batch, and how a long one is cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight
from kinetic.errors import KineticError
from kinetic.formats import by_type, check_scales
from kinetic.types import Batch

SLICE = 16 << 20
"""Bytes of the file that are read at a time, and then given back: most of a model is in memory once, not twice."""


def check_given(width: int, batch: Batch, given: NDArray[np.float32] | None) -> None:
    """Raises KineticError unless ``given`` is what a model needs: [T, ``width``], or None with a width of 0."""
    found = (0, 0) if given is None else given.shape
    if found != ((len(batch.tokens), width) if width else (0, 0)):
        message = f"this model takes {width} numbers beside each of {len(batch.tokens)} tokens, and was given {found}"
        raise KineticError(message, name="WRONG_ROWS_GIVEN")


def split(batch: Batch, size: int) -> list[Batch]:
    """The batch in pieces of at most ``size`` rows, in order."""
    if len(batch.tokens) <= size:
        return [batch]
    parts = []
    for start in range(0, len(batch.tokens), size):
        rows = slice(start, start + size)
        outputs = tuple(o - start for o in batch.outputs if start <= o < start + size)
        parts.append(Batch(batch.tokens[rows], batch.positions[rows], batch.sequences[rows], outputs, batch.also[rows]))
    return parts


def check_table(table: Weight) -> None:
    """Raises UnsupportedModel if a scale of an embedding table is not finite. Its rows stay in the file."""
    fmt = by_type(table.ggml_type, table.name)
    rows, row_bytes = table.data.shape
    step = max(1, SLICE // row_bytes)
    for first in range(0, rows, step):
        piece = table.data[first : first + step]
        check_scales(fmt, piece, table.name)
        table.release(first * row_bytes, piece.nbytes)


def runs(batch: Batch, limit: int) -> list[tuple[int, int]]:
    """(first row, rows) of stretches in one sequence at consecutive positions, at most ``limit`` rows each."""
    out: list[tuple[int, int]] = []
    start = 0
    rows = len(batch.tokens)
    for t in range(1, rows + 1):
        joined = (
            t < rows
            and t - start < limit
            and batch.sequences[t] == batch.sequences[start]
            and batch.positions[t] == batch.positions[start] + (t - start)
        )
        if not joined:
            out.append((start, t - start))
            start = t
    return out
