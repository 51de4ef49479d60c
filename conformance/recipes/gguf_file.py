"""Writes a GGUF file, version 3: the little of the format that recipes need."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ALIGNMENT = 32
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


class Stored(NamedTuple):
    """A tensor as it lies in the file; ``shape`` is row-major."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    data: bytes


def to_bytes(metadata: Mapping[str, Any], tensors: Sequence[Stored]) -> bytes:
    """The whole file. Values are texts, booleans, whole numbers, floats, and lists of one of these."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_string(name) + _value(name, value) for name, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        head.append(_string(tensor.name) + sizes + struct.pack("<IQ", tensor.ggml_type, offset))
        offset += len(_padded(tensor.data))
    return _padded(b"".join(head)) + b"".join(_padded(tensor.data) for tensor in tensors)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        kind = INT32 if _kind(value[0]) == UINT32 else _kind(value[0])
        head = struct.pack("<IIQ", ARRAY, kind, len(value))
        return head + b"".join(_scalar(kind, item) for item in value)
    return struct.pack("<I", _kind(value)) + _scalar(_kind(value), value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return UINT32
    return FLOAT32 if isinstance(value, float) else STRING


def _scalar(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)
