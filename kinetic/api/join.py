"""The parts of a split model as one GGUF file, in pieces: what ``pack`` puts into a bundle.

Keys are those of the first part, byte for byte and in its order, without the ones that
say how it was split; tensors stand in the order of the parts and of each part's header.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Any

from kinetic import store
from kinetic.errors import FileProblem, UnsupportedModel
from kinetic.gguf import Gguf, Shard, Tensor
from kinetic.gguf_types import type_name
from ktc.inputs import ModelFile, ModelStream

SPLIT_KEYS = frozenset({"split.no", "split.count", "split.tensors.count"})
PIECE = 1 << 20

_COUNTS, _U32, _U64, _PLACE = Struct("<4sIQQ"), Struct("<I"), Struct("<Q"), Struct("<iQ")


class JoinedModel(ModelStream):
    """All parts of an open split model as one file. ``sources`` are tables of the parts (ktc.manifest.SOURCE)."""

    def __init__(self, gguf: Gguf, progress: store.Progress | None = None) -> None:
        """Hashes the parts; ``progress`` is told (bytes done, bytes in all).

        Raises FileProblem, also for links, and UnsupportedModel for tensors whose size isn't known.
        """
        for shard in gguf.shards:
            _require_plain(shard)
        header, places = _header(gguf)
        self.sources = list(_sources(gguf, progress))
        size = len(header) + sum(_padded(length, gguf.alignment) for _, _, length in places)
        super().__init__(size, _pieces(header, places, gguf.alignment), gguf.check_unchanged)


def _require_plain(shard: Shard) -> None:
    """As of a model in one file: no link, no second name, and still the file that was opened."""
    with ModelFile(shard.path) as file:
        if (file.status.st_dev, file.status.st_ino) != (shard.source.status.st_dev, shard.source.status.st_ino):
            raise FileProblem(f"{shard.path} was changed while it was in use; open it again", name="FILE_CHANGED")


def _sources(gguf: Gguf, progress: store.Progress | None) -> Iterator[dict[str, Any]]:
    done = 0
    for shard in gguf.shards:
        found = store.digests(shard.path, rehash=True, opened=shard.source.status)
        done += found.size
        if progress:
            progress(done, gguf.size)
        yield {"name": shard.path.name, "size": found.size, "blake3": found.blake3, "sha256": found.sha256}


Place = tuple[Shard, int, int]
"""A tensor's data: its file, offset and length in bytes."""


def _header(gguf: Gguf) -> tuple[bytes, list[Place]]:
    """The bytes before the data, padded, and where the data comes from, tensor by tensor."""
    first = gguf.shards[0]
    records = [bytes(first.source.buffer[a:b]) for name, a, b in first.records() if name not in SPLIT_KEYS]
    entries, places, offset = [], [], 0
    for shard in gguf.shards:
        for tensor in shard.header.tensors:
            if tensor.nbytes < 0:
                raise UnsupportedModel(
                    f"tensor {tensor.name!r} is stored as {type_name(tensor.ggml_type)}, so its size is not known and"
                    " the parts can't be joined",
                    name="UNKNOWN_TENSOR_TYPE",
                )
            entries.append(_entry(tensor, offset))
            places.append((shard, tensor.offset, tensor.nbytes))
            offset += _padded(tensor.nbytes, gguf.alignment)
    counts = _COUNTS.pack(b"GGUF", gguf.version, len(entries), len(records))
    header = b"".join([counts, *records, *entries])
    return header + bytes(_padded(len(header), gguf.alignment) - len(header)), places


def _entry(tensor: Tensor, offset: int) -> bytes:
    """A tensor's entry; GGUF stores the innermost dimension first."""
    name = tensor.name.encode()
    sizes = b"".join(map(_U64.pack, reversed(tensor.shape)))
    head = _U64.pack(len(name)) + name + _U32.pack(len(tensor.shape)) + sizes
    return head + _PLACE.pack(tensor.ggml_type, offset)


def _pieces(header: bytes, places: list[Place], alignment: int) -> Iterator[bytes | memoryview]:
    yield header
    for shard, offset, length in places:
        end = offset + length
        yield from (shard.source.buffer[at : min(at + PIECE, end)] for at in range(offset, end, PIECE))
        if padding := _padded(length, alignment) - length:
            yield bytes(padding)


def _padded(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment


def joined_name(path: str | os.PathLike[str]) -> str:
    """``MODEL.gguf`` for ``MODEL-00001-of-00003.gguf``."""
    stem = os.fspath(path).rpartition("-of-")[0]
    return os.path.basename(stem.rpartition("-")[0]) + ".gguf"
