"""Files of importance matrices, read: for each weight, what llama-imatrix summed over the rows of a text.

Two formats are in use. As GGUF: the keys imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size; for each weight
NAME float32 ``NAME.in_sum2`` [experts, K], sums of squared inputs, ``NAME.counts`` [experts], their rows, and perhaps
``NAME.in_sum`` [experts, K], sums of the inputs. The older one, .dat, all little-endian:

    int32 number of entries; per entry: int32 length, name, int32 calls, int32 n, float32 [n]
    then, if the file goes on: int32 chunks, int32 length, name of the data set

Its values are mean squares times calls, and its calls are chunks. Sources: common/imatrix-loader.cpp, tools/quantize
and tools/imatrix of llama.cpp b11434.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.errors import FileProblem, Malformed
from kinetic.gguf import Gguf
from kinetic.gguf_types import TYPES, Array

I64 = NDArray[np.int64]

_INT = Struct("<i")
LONGEST_NAME = 1 << 16
MOST_BYTES = 1 << 31
"""Of a file in the older format, which is read whole."""
MOST_ROWS = 1 << 31
"""Of an expert. More than any text has, and small enough for every sum of counts."""

_DATASETS, _CHUNKS, _SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_PARTS = (".in_sum2", ".counts", ".in_sum")


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one weight: sums of squared inputs and of inputs float32 [experts * K], and counts int64 [experts].

    All are finite, and only inputs may be negative. An expert that was never asked counts 0.
    """

    squares: F32
    inputs: F32 | None
    counts: I64


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one file holds."""

    path: str
    entries: dict[str, Sums]
    datasets: list[str]
    chunks: int
    chunk_size: int | None
    """Tokens in a chunk, 0 if unknown. None in the older format, which counts chunks instead of rows."""


def read(path: str | os.PathLike[str]) -> Recorded:
    """Either format. Raises FileProblem and Malformed."""
    name = os.fspath(path)
    try:
        is_regular = stat.S_ISREG(os.stat(name).st_mode)  # Before it is opened: that would wait for a FIFO.
        if not is_regular:
            raise FileProblem(f"{name} is not a regular file: name the file itself", name="NOT_A_FILE")
        with open(name, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        found = _read_gguf(name) if is_gguf else _read_old(name)
    except OSError as error:
        raise FileProblem(f"cannot read {name}: {error.strerror}", name="UNREADABLE") from None
    if not found.entries:
        raise Malformed(f"{name} holds no importance of any tensor; make it again", name="EMPTY_IMATRIX")
    return found


def _sums(path: str, name: str, squares: F32, inputs: F32 | None, counts: I64) -> Sums:
    """Checked. Raises Malformed."""
    if not np.isfinite(squares).all() or not (inputs is None or np.isfinite(inputs).all()):
        problem = f"{path}: the importance of tensor {name!r} has a value that is not finite"
        raise Malformed(f"{problem}; make it again", name="NON_FINITE_IMATRIX")
    if squares.min() < 0:
        raise _bad(path, f"the importance of tensor {name!r} has a negative value, which no sum of squares is")
    if inputs is not None and inputs.size != squares.size:
        raise _bad(path, f"{name!r} has {squares.size} sums of squares and {inputs.size} of inputs")
    return Sums(squares, inputs, counts)


# -- as GGUF


def _read_gguf(path: str) -> Recorded:
    with Gguf.open(path) as file:
        missing = [key for key in (_DATASETS, _CHUNKS, _SIZE) if key not in file.metadata]
        if missing:
            raise _bad(path, f"the key {missing[0]!r} is missing")
        for key in (_CHUNKS, _SIZE):
            if file.types[key] != "UINT32":
                raise _bad(path, f"the key {key!r} is {file.types[key]} and not UINT32")
        datasets = file.metadata[_DATASETS]
        if not isinstance(datasets, Array) or (len(datasets) and datasets.kind != "STRING"):
            raise _bad(path, f"the key {_DATASETS!r} is {file.types[_DATASETS]} and no list of strings")
        entries = dict(_gguf_entries(file, path))
        return Recorded(path, entries, list(datasets), file.get(_CHUNKS, "int"), file.get(_SIZE, "int"))


def _gguf_entries(file: Gguf, path: str) -> Iterator[tuple[str, Sums]]:
    for name in sorted({tensor.rpartition(".")[0] for tensor in file.tensors if tensor.endswith(_PARTS)}):
        squares, counts = (_floats(file, path, f"{name}.{part}") for part in ("in_sum2", "counts"))
        if not counts.size or not squares.size or squares.size % counts.size:
            raise _bad(path, f"{squares.size} sums of {name!r} don't divide among {counts.size} counts")
        inputs = _floats(file, path, f"{name}.in_sum") if f"{name}.in_sum" in file.tensors else None
        yield name, _sums(path, name, squares, inputs, _whole(path, name, counts))


def _floats(file: Gguf, path: str, name: str) -> F32:
    tensor = file.tensors.get(name)
    if tensor is None or TYPES.get(tensor.ggml_type, ("",))[0] != "F32":
        raise _bad(path, f"tensor {name!r} is missing, or not F32")
    return file.data(name).view("<f4").astype(np.float32)


def _whole(path: str, name: str, counts: F32) -> I64:
    """The nearest whole numbers, halves up. Raises Malformed."""
    wide = counts.astype(np.float64)
    if not ((wide >= 0) & (wide <= MOST_ROWS)).all():
        raise _bad(path, f"a count of {name!r} is no number of rows from 0 to {MOST_ROWS}")
    whole: I64 = np.floor(wide + 0.5).astype(np.int64)
    return whole


# -- the older format


def _read_old(path: str) -> Recorded:
    if os.path.getsize(path) > MOST_BYTES:
        raise _bad(path, "it is too large for the older format")
    with open(path, "rb") as file:
        cursor = _Cursor(file.read(MOST_BYTES), path)
    count = cursor.number("the number of entries")
    if count < 1:
        raise _bad(path, f"it is no GGUF file, and in the older format it would hold {count} entries")
    entries = dict(cursor.entry() for _ in range(count))
    if cursor.is_at_end():
        return Recorded(path, entries, [], 0, None)
    chunks, dataset = cursor.number("the number of chunks"), cursor.name()
    return Recorded(path, entries, [dataset] if dataset else [], chunks, None)


class _Cursor:
    """A place in the bytes of a file; everything claimed is compared with what is left."""

    def __init__(self, content: bytes, path: str) -> None:
        self.content, self.path, self.at = content, path, 0

    def take(self, count: int, what: str) -> bytes:
        if not 0 <= count <= len(self.content) - self.at:
            raise _bad(self.path, f"it ends inside {what}, at byte {self.at}")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, what: str) -> int:
        return int(_INT.unpack(self.take(4, what))[0])

    def name(self) -> str:
        """Up to a NUL, as C reads it."""
        length = self.number("the length of a name")
        if length > LONGEST_NAME:
            raise _bad(self.path, f"a name before byte {self.at} claims {length} bytes")
        return self.take(length, "a name").split(b"\0")[0].decode("utf-8", "surrogateescape")

    def entry(self) -> tuple[str, Sums]:
        name, calls, count = self.name(), self.number("an entry"), self.number("an entry")
        if count < 1 or calls < 0:
            raise _bad(self.path, f"the entry {name!r} has {count} values of {calls} calls")
        values = np.frombuffer(self.take(4 * count, f"the entry {name!r}"), "<f4").astype(np.float32)
        return name, _sums(self.path, name, values, None, np.array([calls], np.int64))

    def is_at_end(self) -> bool:
        return self.at == len(self.content)


def _bad(path: str, problem: str) -> Malformed:
    return Malformed(f"{path} is no importance matrix: {problem}; make it again with llama-imatrix", name="BAD_IMATRIX")
