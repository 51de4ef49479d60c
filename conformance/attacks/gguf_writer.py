"""A small GGUF writer: makes valid files with few words, and broken ones on purpose.

    writer = GgufWriter()
    writer.key("general.architecture", "llama")
    writer.raw_tensor("token_embd.weight", (8, 4), 0, bytes(128))
    writer.write(tmp_path / "tiny.gguf")

Needs the standard library alone; an array is whatever has ``shape``, ``dtype`` and ``tobytes``
as those of NumPy do. Nothing is checked here. Every count, type, size and offset can be given by hand, and
``raw_key`` and ``raw_tensor`` take bytes as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODES = {
    "UINT8": (0, "B"),
    "INT8": (1, "b"),
    "UINT16": (2, "H"),
    "INT16": (3, "h"),
    "UINT32": (4, "I"),
    "INT32": (5, "i"),
    "FLOAT32": (6, "f"),
    "BOOL": (7, "?"),
    "STRING": (8, ""),
    "ARRAY": (9, ""),
    "UINT64": (10, "Q"),
    "INT64": (11, "q"),
    "FLOAT64": (12, "d"),
}
ARRAY_TYPES = {"<f4": 0, "<f2": 1, "|i1": 24, "<i4": 26, "<f8": 28}
"""Tensor type by ``dtype.str``."""


def string(text: str | bytes, length: int | None = None) -> bytes:
    """Length and bytes; ``length`` overrides the true one."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def kind_of(value: Any) -> str:
    """The value type a Python value gets when none is given."""
    if isinstance(value, bool):
        return "BOOL"
    if isinstance(value, int):
        return "UINT32" if value >= 0 else "INT32"
    return "FLOAT32" if isinstance(value, float) else "STRING"


def scalar(kind: str, value: Any) -> bytes:
    return string(value) if kind == "STRING" else struct.pack("<" + CODES[kind][1], value)


def array(kind: str, values: Iterable[Any], count: int | None = None) -> bytes:
    items = list(values)
    head = struct.pack("<IQ", CODES[kind][0], len(items) if count is None else count)
    return head + b"".join(scalar(kind, item) for item in items)


@dataclass
class _Tensor:
    head: bytes
    offset: int | None
    data: bytes


class GgufWriter:
    """Collects keys and tensors; ``to_bytes`` lays them out. Methods return self."""

    def __init__(self, version: int = 3, alignment: int | None = None) -> None:
        """``alignment`` other than None is also written as ``general.alignment``."""
        self.version = version
        self.alignment = alignment or 32
        self._keys: list[bytes] = []
        self._tensors: list[_Tensor] = []
        if alignment is not None:
            self.key("general.alignment", alignment)

    # -- keys

    def key(self, name: str | bytes, value: Any, kind: str | None = None) -> GgufWriter:
        """``kind`` is the type of a scalar or of the items of a list; by default it follows from the value."""
        if isinstance(value, (list, tuple)):
            kind = kind or ("INT32" if value and kind_of(value[0]) == "UINT32" else kind_of(value[0] if value else 0))
            return self.raw_key(name, CODES["ARRAY"][0], array(kind, value))
        kind = kind or kind_of(value)
        return self.raw_key(name, CODES[kind][0], scalar(kind, value))

    def keys(self, metadata: Mapping[str, Any]) -> GgufWriter:
        for name, value in metadata.items():
            self.key(name, value)
        return self

    def raw_key(self, name: str | bytes, code: int, payload: bytes) -> GgufWriter:
        self._keys.append(string(name) + struct.pack("<I", code) + payload)
        return self

    # -- tensors

    def tensor(self, name: str | bytes, values: Any, offset: int | None = None) -> GgufWriter:
        """A plain tensor from an array; its type follows from the dtype, its shape is row-major."""
        return self.raw_tensor(name, values.shape, ARRAY_TYPES[values.dtype.str], values.tobytes(), offset)

    def raw_tensor(
        self,
        name: str | bytes,
        shape: Sequence[int],
        ggml_type: int,
        data: bytes,
        offset: int | None = None,
        dimensions: int | None = None,
    ) -> GgufWriter:
        """Any type and bytes. ``shape`` is row-major; ``dimensions`` overrides how many are claimed."""
        count = len(shape) if dimensions is None else dimensions
        sizes = b"".join(struct.pack("<Q", size % 2**64) for size in reversed(shape))
        head = string(name) + struct.pack("<I", count) + sizes + struct.pack("<I", ggml_type % 2**32)
        self._tensors.append(_Tensor(head, offset, data))
        return self

    # -- files

    def _padding(self, length: int) -> bytes:
        return b"\0" * (-length % self.alignment)

    def header(self, tensor_count: int | None = None, key_count: int | None = None) -> bytes:
        """Everything before the padding that comes before the data."""
        tensors = len(self._tensors) if tensor_count is None else tensor_count
        keys = len(self._keys) if key_count is None else key_count
        out = [b"GGUF", struct.pack("<IQQ", self.version, tensors, keys), *self._keys]
        offset = 0
        for tensor in self._tensors:
            out += [tensor.head, struct.pack("<Q", (offset if tensor.offset is None else tensor.offset) % 2**64)]
            offset += len(tensor.data) + len(self._padding(len(tensor.data)))
        return b"".join(out)

    def to_bytes(
        self, tensor_count: int | None = None, key_count: int | None = None, final_padding: bool = True
    ) -> bytes:
        header = self.header(tensor_count, key_count)
        out = [header, self._padding(len(header))]
        for tensor in self._tensors:
            out += [tensor.data, self._padding(len(tensor.data))]
        return b"".join(out if final_padding else out[:-1])

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def write_split(folder: Path, stem: str, metadata: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[Path]:
    """A split model: one file for each mapping of tensors; all metadata is in the first, as llama-gguf-split does."""
    total = sum(len(tensors) for tensors in parts)
    paths = []
    for index, tensors in enumerate(parts):
        writer = GgufWriter().keys(metadata if index == 0 else {})
        writer.key("split.no", index, "UINT16").key("split.count", len(parts), "UINT16")
        writer.key("split.tensors.count", total, "INT32")
        for name, values in tensors.items():
            writer.tensor(name, values)
        paths.append(writer.write(folder / f"{stem}-{index + 1:05d}-of-{len(parts):05d}.gguf"))
    return paths
