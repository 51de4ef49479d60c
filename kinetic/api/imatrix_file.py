"""Files of importance matrices, as llama.cpp writes and reads them: GGUF, and the older .dat.

GGUF: keys general.type "imatrix", imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size; for each weight NAME
the float32 tensors NAME.in_sum2 [1, K], NAME.counts [1, 1] and NAME.in_sum [1, K].

.dat, little-endian: int32 entries; for each int32 length and name, int32 chunks, int32 K, float32 [K] sums of
squares a row times chunks; then int32 chunks, and int32 length and name of the text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kinetic.errors import FileProblem, Malformed, MalformedGguf
from kinetic.gguf import Gguf
from kinetic.lanes import F64

ALIGNMENT = 32
UINT32, STRING, ARRAY = 4, 8, 9
F32_TYPE = 0
LONGEST_NAME, WIDEST, MOST = 1 << 10, 1 << 24, 1 << 20


@dataclass
class Entry:
    """What went into the products with one weight: over ``count`` rows, sums [K] of squares and of values."""

    squares: F64
    sums: F64 | None
    """None if a file without them was taken in."""
    count: int

    def add(self, other: Entry) -> None:
        self.squares = self.squares + other.squares
        self.sums = self.sums + other.sums if self.sums is not None and other.sums is not None else None
        self.count += other.count


@dataclass
class Matrix:
    """Entries by weight, the tokens of a chunk, and the names of the texts they come from."""

    chunk_size: int
    datasets: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        """Chunks read, by the entry with the most rows; to nearest."""
        most = max((entry.count for entry in self.entries.values()), default=0)
        return (most + self.chunk_size // 2) // self.chunk_size

    def add(self, other: Matrix) -> None:
        """Take in another. Raises Malformed where widths differ."""
        for name, entry in other.entries.items():
            mine = self.entries.get(name)
            if mine is not None and len(mine.squares) != len(entry.squares):
                raise Malformed(f"{name} has {len(mine.squares)} columns in one and {len(entry.squares)} in another",
                                name="BAD_IMATRIX")  # fmt: skip
            if mine is None:
                self.entries[name] = Entry(entry.squares, entry.sums, entry.count)
            else:
                mine.add(entry)
        self.datasets = self.datasets + other.datasets


# --- writing ---


def to_gguf(matrix: Matrix) -> bytes:
    """The whole file, entries by name."""
    tensors: list[tuple[str, F64]] = []
    for name in sorted(matrix.entries):
        entry = matrix.entries[name]
        tensors += [(f"{name}.in_sum2", entry.squares), (f"{name}.counts", np.array([float(entry.count)]))]
        tensors += [(f"{name}.in_sum", entry.sums)] if entry.sums is not None else []
    keys = [
        _string("general.type") + struct.pack("<I", STRING) + _string("imatrix"),
        _string("imatrix.datasets") + struct.pack("<IIQ", ARRAY, STRING, len(matrix.datasets)),
        *map(_string, matrix.datasets),
        _string("imatrix.chunk_count") + struct.pack("<II", UINT32, matrix.chunks),
        _string("imatrix.chunk_size") + struct.pack("<II", UINT32, matrix.chunk_size),
    ]
    head, data, offset = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 4), *keys], [], 0
    for name, values in tensors:
        head.append(_string(name) + struct.pack("<IQQIQ", 2, len(values), 1, F32_TYPE, offset))
        data.append(_padded(values.astype("<f4").tobytes()))
        offset += len(data[-1])
    return _padded(b"".join(head)) + b"".join(data)


def to_dat(matrix: Matrix) -> bytes:
    """The older format: it has no sums of values, and counts chunks instead of rows."""
    parts = [struct.pack("<i", len(matrix.entries))]
    for name in sorted(matrix.entries):
        entry = matrix.entries[name]
        raw, chunks = name.encode(), -(-entry.count // matrix.chunk_size)
        values = entry.squares / entry.count * chunks
        parts += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", chunks, len(values))]
        parts.append(values.astype("<f4").tobytes())
    dataset = matrix.datasets[-1].encode() if matrix.datasets else b""
    return b"".join([*parts, struct.pack("<ii", matrix.chunks, len(dataset)), dataset])


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


# --- reading ---


def read(path: str, chunk_size: int) -> Matrix:
    """Either format. ``chunk_size`` is what a chunk of a .dat stands for. Raises FileProblem or Malformed."""
    try:
        with open(path, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}", name="UNREADABLE") from None
    return _read_gguf(path) if is_gguf else _read_dat(path, chunk_size)


def _read_gguf(path: str) -> Matrix:
    with Gguf.open(path) as file:
        if file.metadata.get("general.type") != "imatrix":
            raise _bad(path, "its general.type is not imatrix")
        size, datasets = file.metadata.get("imatrix.chunk_size"), file.metadata.get("imatrix.datasets") or []
        matrix = Matrix(size if isinstance(size, int) and size > 0 else 512, [str(name) for name in datasets])
        names = [name.removesuffix(".in_sum2") for name in file.tensors if name.endswith(".in_sum2")]
        for name in names:
            squares, counts = _values(file, f"{name}.in_sum2"), _values(file, f"{name}.counts")
            sums = _values(file, f"{name}.in_sum") if f"{name}.in_sum" in file.tensors else None
            if len(counts) != 1 or (sums is not None and len(sums) != len(squares)):
                raise _bad(path, f"the tensors of {name} don't belong together (experts are not supported)")
            matrix.entries[name] = Entry(squares, sums, round(float(counts[0])))
    return matrix


def _values(file: Gguf, name: str) -> F64:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.ggml_type != F32_TYPE:
        raise MalformedGguf(f"{file.paths[0]} has no float32 tensor {name!r}", name="BAD_IMATRIX")
    return file.data(name).reshape(-1).view("<f4").astype(np.float64)


def _read_dat(path: str, chunk_size: int) -> Matrix:
    cursor, matrix = _Cursor(path), Matrix(chunk_size)
    for _ in range(cursor.number(MOST)):
        name = cursor.take(cursor.number(LONGEST_NAME)).decode("utf-8", "replace")
        chunks, width = cursor.number(1 << 30), cursor.number(WIDEST)
        values = np.frombuffer(cursor.take(4 * width), "<f4").astype(np.float64)
        matrix.entries[name] = Entry(values * chunk_size, None, chunks * chunk_size)
    if cursor.is_done:
        return matrix
    cursor.number(1 << 30, 0)
    dataset = cursor.take(cursor.number(1 << 16, 0)).decode("utf-8", "replace")
    matrix.datasets = [dataset] if dataset else []
    return matrix


class _Cursor:
    def __init__(self, path: str) -> None:
        self._path, self._data, self._at = path, Path(path).read_bytes(), 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise _bad(self._path, "it ends too early")
        self._at += count
        return piece

    def number(self, most: int, least: int = 1) -> int:
        (value,) = struct.unpack("<i", self.take(4))
        if not least <= value <= most:
            raise _bad(self._path, f"it counts {value} of something")
        return int(value)


def _bad(path: str, problem: str) -> Malformed:
    return Malformed(f"{path} is no importance matrix: {problem}", name="BAD_IMATRIX")


def combined(paths: Sequence[str], chunk_size: int) -> Matrix:
    """Several files taken together, in their order; an empty matrix for none."""
    matrix = Matrix(chunk_size)
    for path in paths:
        matrix.add(read(path, chunk_size))
    return matrix
