"""Importance matrices: how much each column of a weight matters, as llama-imatrix measured it.

Two formats are in use. As GGUF: for each tensor NAME float32 ``NAME.in_sum2``, sums of squared inputs [experts, K], and
``NAME.counts`` [experts], by which they are divided. The older one, all little-endian:

    int32 number of entries; per entry: int32 length, name, int32 calls, int32 n, float32 [n]
    then, if the file goes on: int32 chunks, int32 length, name of the data set

Sources: common/imatrix-loader.cpp and tools/quantize of llama.cpp b11434.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import numpy as np

from kinetic.bits import F32
from kinetic.errors import Malformed
from kinetic.gguf import Gguf
from kinetic.gguf_types import TYPES, Array

_INT = Struct("<i")
LONGEST_NAME = 1 << 16
MOST_BYTES = 1 << 31
"""Of a file in the older format, which is read whole."""

_DATASETS, _CHUNKS, _SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


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
    """Either format. Raises FileProblem and Malformed."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    found = _read_gguf(name) if is_gguf else _read_old(name)
    if not found.entries:
        raise Malformed(f"{name} holds no importance of any tensor; make it again", name="EMPTY_IMATRIX")
    for tensor, values in found.entries.items():
        if not np.isfinite(values).all():
            problem = f"{name}: the importance of tensor {tensor!r} has a value that is not finite"
            raise Malformed(f"{problem}; make it again", name="NON_FINITE_IMATRIX")
    return found


# -- as GGUF


def _read_gguf(path: str) -> Importance:
    with Gguf.open(path) as file:
        missing = [key for key in (_DATASETS, _CHUNKS, _SIZE) if key not in file.metadata]
        if missing:
            raise _bad(path, f"the key {missing[0]!r} is missing, so it is no importance matrix")
        datasets = file.metadata[_DATASETS]
        is_list = isinstance(datasets, Array) and datasets.kind == "STRING" and len(datasets)
        entries = dict(_gguf_entries(file, path))
        return Importance(path, entries, datasets[0] if is_list else None, file.get(_CHUNKS, "int"))


def _gguf_entries(file: Gguf, path: str) -> Iterator[tuple[str, F32]]:
    parts = {
        tensor.rpartition(".")[0] for tensor in file.tensors if tensor.endswith((".in_sum2", ".counts", ".in_sum"))
    }
    for name in sorted(parts):
        sums, counts = (_floats(file, path, f"{name}.{part}") for part in ("in_sum2", "counts"))
        if sums.size % counts.size:
            raise _bad(path, f"{sums.size} sums of {name!r} don't divide among {counts.size} counts")
        yield name, _means(sums.reshape(counts.size, -1), counts).reshape(-1)


def _floats(file: Gguf, path: str, name: str) -> F32:
    tensor = file.tensors.get(name)
    if tensor is None or TYPES.get(tensor.ggml_type, ("",))[0] != "F32":
        raise _bad(path, f"tensor {name!r} is missing, or not F32")
    return file.data(name).view("<f4").astype(np.float32)


def _means(sums: F32, counts: F32) -> F32:
    """Each expert's sums [experts, K] over its count; 1 where it was never asked."""
    with np.errstate(all="ignore"):  # What isn't finite is refused later.
        whole = np.trunc(counts + np.copysign(np.float32(0.5), counts))[:, None]
        return np.where(whole > 0, sums / whole, np.float32(1)).astype(np.float32)


# -- the older format


def _read_old(path: str) -> Importance:
    if os.path.getsize(path) > MOST_BYTES:
        raise _bad(path, "it is too large for an importance matrix in the older format")
    with open(path, "rb") as file:
        cursor = _Cursor(file.read(), path)
    count = cursor.number("the number of entries")
    if count < 1:
        raise _bad(path, f"it is no GGUF file, and in the older format it would hold {count} entries")
    entries = dict(cursor.entry() for _ in range(count))
    if cursor.is_at_end():
        return Importance(path, entries, None, 0)
    chunks = cursor.number("the number of chunks")
    return Importance(path, entries, cursor.name() or None, chunks)


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

    def entry(self) -> tuple[str, F32]:
        """The values, which are sums over their calls."""
        name, calls, count = self.name(), self.number("an entry"), self.number("an entry")
        if count < 1:
            raise _bad(self.path, f"the entry {name!r} has {count} values")
        values = np.frombuffer(self.take(4 * count, f"the entry {name!r}"), "<f4").astype(np.float32)
        return name, values / np.float32(calls) if calls > 0 else values

    def is_at_end(self) -> bool:
        return self.at == len(self.content)


def _bad(path: str, problem: str) -> Malformed:
    return Malformed(f"{path}: {problem}; make it again with llama-imatrix", name="BAD_IMATRIX")
