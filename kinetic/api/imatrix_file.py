"""Importance matrices as sums, which can be added to: read from llama.cpp's files, and written as such.

``kinetic.quantize.imatrix`` describes both formats and reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kinetic.errors import Malformed, UsageError
from kinetic.gguf_parse import LONGEST_TENSOR_NAME
from kinetic.lanes import F64
from kinetic.quantize import imatrix
from kinetic.quantize.imatrix import MOST_ROWS, Sums
from kinetic.quantize.metadata import Keys
from kinetic.quantize.write import header, padded
from kinetic.softmax import I64

F32_TYPE: Final = 0
LEAST_CHUNK, MOST_CHUNK = 4, (1 << 31) - 1
"""Tokens in a chunk: as few as can be scored, and as many as the files can say."""


@dataclass
class Entry:
    """What went into the products with one weight: sums [experts * K] of squares and of values over ``counts`` rows.

    ``counts`` is int64 [experts]; 0 for an expert that was never asked.
    """

    squares: F64
    sums: F64 | None
    """None if a file without them was taken in."""
    counts: I64

    @property
    def rows(self) -> int:
        """Those of the expert with the most."""
        return int(self.counts.max())

    def means(self, sums: F64) -> F64:
        """Sums over rows [experts * K]; NaN of an expert without rows."""
        counts = np.where(self.counts > 0, self.counts, np.nan)[:, None]
        means: F64 = (sums.reshape(len(counts), -1) / counts).reshape(-1)
        return means

    def add(self, other: Entry) -> None:
        """In the older format all experts have one count together, which is then that of each."""
        self.squares = self.squares + other.squares
        self.sums = self.sums + other.sums if self.sums is not None and other.sums is not None else None
        self.counts = self.counts + other.counts

    def fits(self, other: Entry) -> bool:
        """Whether both are of the same columns and experts."""
        experts = {len(self.counts), len(other.counts)} - {1}
        return len(self.squares) == len(other.squares) and len(experts) <= 1


@dataclass
class Matrix:
    """Entries by weight, the tokens of a chunk, and the names of the texts they come from."""

    chunk_size: int
    datasets: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        """Chunks read, by the entry with the most rows; to nearest."""
        most = max((entry.rows for entry in self.entries.values()), default=0)
        return (most + self.chunk_size // 2) // self.chunk_size

    def add(self, other: Matrix) -> None:
        """Take in another. Raises Malformed where columns or experts differ, or rows are too many to count."""
        for name, entry in other.entries.items():
            mine = self.entries.get(name)
            if mine is None:
                mine = self.entries[name] = Entry(entry.squares, entry.sums, entry.counts)
            elif not mine.fits(entry):
                shapes = [f"{len(e.squares)} columns of {len(e.counts)} matrices" for e in (mine, entry)]
                raise Malformed(f"{name} has {shapes[0]} in one and {shapes[1]} in another", name="BAD_IMATRIX")
            else:
                mine.add(entry)
            if mine.rows > MOST_ROWS:
                raise Malformed(f"{name} counts {mine.rows} rows, more than a matrix can hold", name="BAD_IMATRIX")
        self.datasets = self.datasets + other.datasets


# --- writing ---


def to_gguf(matrix: Matrix) -> bytes:
    """The whole file, entries by name. Raises Malformed for what it can't hold."""
    tensors: list[tuple[str, tuple[int, int], bytes]] = []
    for name in sorted(matrix.entries):
        entry = matrix.entries[name]
        experts = len(entry.counts)
        parts: list[tuple[str, F64 | I64]] = [("in_sum2", entry.squares), ("counts", entry.counts)]
        parts += [("in_sum", entry.sums)] if entry.sums is not None else []
        for part, values in parts:
            tensors.append((f"{name}.{part}", (experts, len(values) // experts), _floats(name, values)))
    keys = Keys()
    keys.put("general.type", "STRING", b"imatrix")
    keys.put_strings("imatrix.datasets", matrix.datasets)
    keys.put("imatrix.chunk_count", "UINT32", matrix.chunks)
    keys.put("imatrix.chunk_size", "UINT32", matrix.chunk_size)
    head = header(keys.values(), [(_short(name), shape, F32_TYPE, len(raw)) for name, shape, raw in tensors])
    return head + b"".join(raw + bytes(padded(len(raw)) - len(raw)) for _, _, raw in tensors)


def to_dat(matrix: Matrix) -> bytes:
    """The older format: it has no sums of values, counts chunks instead of rows, and skips what has none.

    Of an expert without rows it says 1, as llama.cpp has it. Raises Malformed for what it can't hold.
    """
    names = sorted(name for name, entry in matrix.entries.items() if entry.rows)
    if not names:
        raise Malformed("no weight has any rows, so there is nothing to write as dat", name="EMPTY_IMATRIX")
    parts = [struct.pack("<i", len(names))]
    for name in names:
        entry = matrix.entries[name]
        chunks = -(-entry.rows // matrix.chunk_size)
        means = entry.means(entry.squares)
        values = np.where(np.isnan(means), 1.0, means) * chunks
        parts += [_prefixed(name), struct.pack("<ii", chunks, len(values)), _floats(name, values)]
    dataset = matrix.datasets[-1] if matrix.datasets else ""
    return b"".join([*parts, struct.pack("<i", matrix.chunks), _prefixed(dataset)])


def _floats(name: str, values: F64 | I64) -> bytes:
    with np.errstate(over="ignore"):
        narrow = values.astype("<f4")
    if not np.isfinite(narrow).all():
        raise Malformed(f"the sums of {name} are too large for float32: leave a file out", name="BAD_IMATRIX")
    return narrow.tobytes()


def _short(name: str) -> str:
    if not name.isprintable() or len(name.encode()) > LONGEST_TENSOR_NAME:
        problem = f"a GGUF file can't hold a tensor named {name!a}: write it as dat"
        raise Malformed(problem, name="BAD_IMATRIX")
    return name


def _prefixed(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<i", len(raw)) + raw


# --- reading ---


def read(path: str, chunk_size: int) -> Matrix:
    """Either format. ``chunk_size`` is what a chunk of a .dat stands for. Raises FileProblem or Malformed."""
    found = imatrix.read(path)
    is_old = found.chunk_size is None
    entries = {name: _entry(sums, chunk_size if is_old else 1) for name, sums in found.entries.items()}
    return Matrix(found.chunk_size or chunk_size, found.datasets, entries)


def _entry(sums: Sums, factor: int) -> Entry:
    inputs = None if sums.inputs is None else sums.inputs.astype(np.float64)
    return Entry(sums.squares.astype(np.float64) * factor, inputs, sums.counts * factor)


def combined(paths: Sequence[str], chunk_size: int) -> Matrix:
    """Several files taken together, in their order; an empty matrix for none. Raises UsageError for a bad size."""
    if not LEAST_CHUNK <= chunk_size <= MOST_CHUNK:
        raise UsageError(f"-c {chunk_size} is no size of chunks: give one from {LEAST_CHUNK} on", name="CONTEXT")
    matrix = Matrix(chunk_size)
    for path in paths:
        matrix.add(read(path, chunk_size))
    return matrix
