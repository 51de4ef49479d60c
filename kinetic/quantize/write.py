"""The bytes of a GGUF file before its tensor data (GGUF specification of the ggml project, version 3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final

from kinetic.gguf_parse import DEFAULT_ALIGNMENT
from kinetic.quantize.tensors import dimensions

VERSION: Final = 3
_COUNTS, _U32, _U64, _PLACE = Struct("<4sIQQ"), Struct("<I"), Struct("<Q"), Struct("<iQ")


def padded(length: int) -> int:
    """``length`` up to the next multiple of the alignment."""
    return -(-length // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def header(keys: Collection[bytes], tensors: Sequence[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """``keys`` as records; of each tensor its name, row-major shape, ggml type id and size, in the data's order."""
    pieces = [_COUNTS.pack(b"GGUF", VERSION, len(tensors), len(keys)), *keys]
    offset = 0
    for name, shape, type_id, nbytes in tensors:
        pieces.append(_entry(name, shape, type_id, offset))
        offset += padded(nbytes)
    whole = b"".join(pieces)
    return whole + bytes(padded(len(whole)) - len(whole))


def _entry(name: str, shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    """The innermost size comes first, and outermost ones of 1 are left out, as ggml does."""
    raw, sizes = name.encode(), shape[::-1][: dimensions(shape)]
    head = _U64.pack(len(raw)) + raw + _U32.pack(len(sizes)) + b"".join(map(_U64.pack, sizes))
    return head + _PLACE.pack(type_id, offset)
