"""GGUF model files: open one (with its split siblings), read its metadata, view its tensors.

    with Gguf.open("model.gguf") as model:
        model.metadata["general.architecture"]
        model.get("llama.block_count", int)
        model.data("token_embd.weight")  # uint8 [bytes], a view of the file

Files are mapped, never copied. Opening walks and checks the headers (kinetic.gguf_parse)
and reads no tensor data, only the padding in between.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from struct import calcsize
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, overload

from kinetic.errors import FileProblem, MalformedGguf
from kinetic.gguf_parse import AGAIN, Tensor, check_padding, parse
from kinetic.gguf_types import FILE_TYPES, PLAIN_TYPES, TYPES, VALUES, Array, type_name
from kinetic.types import RopeOverrides
from ktc.maps import release_pages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TYPES", "Array", "Gguf", "Shard", "Source", "Tensor", "type_name"]

_SPLIT_NAME: Final = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_SPLIT_KEYS: Final = ("split.no", "split.count", "split.tensors.count")
_OWN_KEYS: Final = frozenset({"split.no", "general.alignment"})
"""Keys that may differ between the files of one split model."""
_GUESSED: Final = 1024
"""Flag in ``general.file_type``: guessed by a program, not declared by the file's maker."""
HEADER_BYTES: Final = 24
"""Before the first key: magic, version and two counts."""
_SIZES: Final = {name: calcsize(f"<{layout}") for name, layout in VALUES.values() if layout}
_MOST_NAMED: Final = 8
"""Missing files listed in a message."""
_REQUIRED: Any = object()


class Gguf:
    """A model file, or all files of a split one in order. ``metadata`` is that of the first.

    Values in ``metadata`` are int, float, bool, str or ``Array`` (a lazily decoded sequence);
    ``types`` names each one's type in the file, such as ``UINT32`` or ``ARRAY[STRING]``.
    ``warnings`` grows when an array with odd strings is decoded.
    """

    rope, rope_is_read = RopeOverrides(), False
    """What takes the place of its settings of rotary positions (models.asked), and whether a family took notice."""

    def __init__(self, shards: list[Shard]) -> None:
        """Take over open files, already checked to belong together."""
        first = shards[0].header
        self.shards = shards
        self.paths = tuple(shard.path for shard in shards)
        self.version, self.alignment = first.version, first.alignment
        self.metadata, self.types = first.metadata, first.types
        self.tensors: dict[str, Tensor] = {}
        self.warnings = first.warnings
        for index, shard in enumerate(shards):
            self._add_tensors(index, shard)
        for shard in shards[1:]:
            self.warnings += shard.header.warnings
        self.warnings += _doubts_about_types(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open ``path``, any one part of a split model included. Raises FileProblem or MalformedGguf."""
        shards = [Shard(Path(path))]
        try:
            _open_siblings(shards)
            return cls(shards)
        except BaseException:
            _close_all(shards)
            raise

    def _add_tensors(self, index: int, shard: Shard) -> None:
        for tensor in shard.header.tensors:
            if tensor.name in self.tensors:
                raise shard.bad("DUPLICATE_TENSOR", f"tensor {tensor.name!r} is also in {self.paths[0].name}")
            self.tensors[tensor.name] = replace(tensor, shard=index)

    # -- metadata

    @overload
    def get(self, key: str, kind: Literal["int"], default: int = ...) -> int: ...
    @overload
    def get(self, key: str, kind: Literal["float"], default: float = ...) -> float: ...
    @overload
    def get(self, key: str, kind: Literal["bool"], default: bool = ...) -> bool: ...
    @overload
    def get(self, key: str, kind: Literal["str"], default: str = ...) -> str: ...
    def get(self, key: str, kind: str, default: Any = _REQUIRED) -> Any:
        """One value, or ``default`` if the key is absent. ``kind`` is exact: an int is no float, a bool no int.

        Raises MalformedGguf: MISSING_KEY, BAD_KEY_TYPE.
        """
        value = self.metadata.get(key, default)
        if value is _REQUIRED:
            raise self.shards[0].bad("MISSING_KEY", f"key {key!r} is missing")
        if key in self.metadata and type(value).__name__ != kind:
            raise self.shards[0].bad("BAD_KEY_TYPE", f"key {key!r} is {self.types[key]}, not of type {kind}")
        return value

    # -- tensors

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of one tensor: uint8 [nbytes], read-only, a view of the map.

        Raises MalformedGguf: MISSING_TENSOR, UNKNOWN_TENSOR_TYPE; and Malformed where they are
        found to be damaged (see ``Source.touch``).
        """
        import numpy as np  # Not at the top: listing a file's contents needs no numpy.

        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.shards[0].bad("MISSING_TENSOR", f"tensor {name!r} is missing")
        shard = self.shards[tensor.shard]
        if tensor.nbytes < 0:
            problem = f"tensor {name!r} is stored as {type_name(tensor.ggml_type)}, which this build cannot read"
            raise shard.bad("UNKNOWN_TENSOR_TYPE", problem, "use a file with other weights or a newer build")
        shard.source.touch(tensor.offset, tensor.nbytes)
        return np.frombuffer(shard.source.buffer, np.uint8, tensor.nbytes, tensor.offset)

    def release(self, name: str, offset: int, length: int) -> None:
        """Take part of a tensor out of memory. Whoever reads it again reads it from the file again."""
        tensor = self.tensors[name]
        self.shards[tensor.shard].source.release(tensor.offset + offset, length)

    def release_all(self) -> None:
        """The same for everything, once it was read: what is used again is mostly a small part."""
        for shard in self.shards:
            shard.source.release(0, shard.size)

    # -- files

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(shard.size for shard in self.shards)

    def check_unchanged(self) -> None:
        """Raises FileProblem FILE_CHANGED if a file was written to since it was opened."""
        for shard in self.shards:
            shard.source.check_unchanged()

    def close(self) -> None:
        """Give up the files. Arrays and views in use stay valid; each map goes with its last view."""
        _close_all(self.shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Source(Protocol):
    """Where the bytes of one GGUF file come from: a file of its own, or part of another (kinetic.loader)."""

    path: Path
    """Of the file on the disk."""
    status: os.stat_result
    """Of that file, at opening."""
    buffer: memoryview
    """The GGUF file's bytes, read-only, a view of a map."""

    def touch(self, offset: int, length: int) -> None:
        """Called before these bytes are used for the first time. Raises Malformed if they are not what they were."""

    def release(self, offset: int, length: int) -> None:
        """Called when these bytes won't be used again soon: their memory may go."""

    def check_unchanged(self) -> None:
        """Raises FileProblem FILE_CHANGED if the file was written to since it was opened."""

    def close(self) -> None: ...


class Shard:
    """One GGUF file: ``path``, ``source``, ``size`` in bytes and ``header``."""

    def __init__(self, place: Path | Source) -> None:
        """Opens the file, or reads from a source, which stays the caller's until this is whole.

        Raises FileProblem or MalformedGguf.
        """
        source: Source = MappedFile(place) if isinstance(place, Path) else place
        self.source, self.path, self.size = source, source.path, len(source.buffer)
        try:
            self.header = parse(source.buffer, source.path.name)
            self._check_padding()
        except BaseException:
            if source is not place:
                source.close()
            raise

    def _check_padding(self) -> None:
        """A few bytes from all over the file. As plain page faults each would read megabytes ahead:
        on a file of 16 GB not yet in memory that was 10 s instead of 0.3 s."""
        mapped = self.source.buffer.obj
        advise = mapped.madvise if sys.platform != "win32" and isinstance(mapped, mmap.mmap) else lambda advice: None
        advise(getattr(mmap, "MADV_RANDOM", 0))
        check_padding(self.source.buffer, self.path.name, self.header)
        advise(getattr(mmap, "MADV_NORMAL", 0))

    def records(self) -> Iterator[tuple[str, int, int]]:
        """Each key, and where it begins and ends in the file: name, type and value as they stand there."""
        end = HEADER_BYTES
        for name, value in self.header.metadata.items():
            begin, end = end, end + 8 + len(name.encode()) + 4 + _value_bytes(value, self.header.types[name])
            yield name, begin, end

    @property
    def data_begin(self) -> int:
        """Where the first tensor's data begins, or the file ends: header and keys stand before it."""
        return min((tensor.offset for tensor in self.header.tensors), default=self.size)

    def bad(self, reason: str, problem: str, advice: str = AGAIN) -> MalformedGguf:
        return MalformedGguf(f"{self.path.name}: {problem}; {advice}", name=reason)


class MappedFile:
    """A file of its own as a ``Source``. Nothing in it can be checked."""

    def __init__(self, path: Path) -> None:
        """Raises FileProblem."""
        self.path = path
        self._map: mmap.mmap | None = None
        try:
            self._file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - closed by close()
        except (OSError, ValueError) as problem:
            raise _file_problem(path, problem) from None
        try:
            self.status = os.fstat(self._file.fileno())
            self.buffer = self._map_whole()
        except BaseException:
            self.close()
            raise

    def _map_whole(self) -> memoryview:
        """The same handle serves fstat and the map, so both speak of one file."""
        if not stat.S_ISREG(self.status.st_mode):
            raise FileProblem(f"{self.path} is not a regular file; give the path of a GGUF file", name="NOT_A_FILE")
        if self.status.st_size == 0:
            return memoryview(b"")  # An empty map is an error of its own.
        try:
            self._map = mmap.mmap(self._file.fileno(), self.status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            raise _file_problem(self.path, problem) from None
        return memoryview(self._map)

    def touch(self, offset: int, length: int) -> None:
        """Nothing says what the bytes should be."""

    def release(self, offset: int, length: int) -> None:
        if self._map is not None:
            release_pages(self._map, offset, length)

    def check_unchanged(self) -> None:
        now, then = os.fstat(self._file.fileno()), self.status
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            raise FileProblem(f"{self.path} was changed while it was in use; open it again", name="FILE_CHANGED")

    def close(self) -> None:
        self._file.close()
        if self._map is not None:
            with suppress(BufferError):  # A view is alive and keeps the map.
                self.buffer.release()
                self._map.close()


def _value_bytes(value: Any, kind: str) -> int:
    """Bytes that a value takes in the file, its type not counted."""
    if isinstance(value, Array):
        return 4 + 8 + value._content.nbytes
    return 8 + len(value.encode()) if kind == "STRING" else _SIZES[kind]


def _open_at_once(path: str, flags: int) -> int:
    """Without O_NONBLOCK, opening a named pipe would wait for its writer; regular files ignore it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _file_problem(path: Path, problem: Exception) -> FileProblem:
    if isinstance(problem, FileNotFoundError):
        return FileProblem(f"{path} does not exist; check the path", name="FILE_NOT_FOUND")
    if isinstance(problem, IsADirectoryError):
        return FileProblem(f"{path} is a folder; give the path of a GGUF file", name="NOT_A_FILE")
    reason = getattr(problem, "strerror", None) or problem
    return FileProblem(f"{path} cannot be read ({reason}); check the path and its permissions", name="UNREADABLE_FILE")


def _close_all(shards: Iterable[Shard]) -> None:
    for shard in shards:
        shard.source.close()


# -- split models


def _open_siblings(shards: list[Shard]) -> None:
    """Given one part of a split model, make ``shards`` all its parts in order (all open, also on errors)."""
    given = shards[0]
    place = _split_place(given)
    if place is None:
        return
    number, count, total = place
    names = _part_names(given, number, count)
    _check_all_there(given, names)
    for index, name in enumerate(names):
        if index != number:
            shards.append(Shard(given.path.with_name(name)))
    shards.insert(number, shards.pop(0))
    for index, shard in enumerate(shards):
        _check_part(shard, shards[0], (index, count, total))
    found = sum(len(shard.header.tensors) for shard in shards)
    if found != total:
        raise given.bad("SPLIT_TENSOR_COUNT", f"the parts hold {found} tensors, but 'split.tensors.count' is {total}")


def _split_place(shard: Shard) -> tuple[int, int, int] | None:
    """(index from 0, number of parts, tensors in all parts), or None if the file is not part of a split model."""
    metadata = shard.header.metadata
    if not any(key in metadata for key in _SPLIT_KEYS):
        return None
    number, count, total = (metadata.get(key) for key in _SPLIT_KEYS)
    if type(number) is not int or type(count) is not int or type(total) is not int:
        problem = f"the keys {', '.join(_SPLIT_KEYS)} must all be integers, but are {number!r}, {count!r} and {total!r}"
        raise shard.bad("SPLIT_KEYS", problem)
    if not 0 <= number < count:
        raise shard.bad("SPLIT_NUMBER", f"key 'split.no' is {number}, but key 'split.count' is {count}")
    return number, count, total


def _part_names(given: Shard, number: int, count: int) -> list[str]:
    """File names of all parts, made from the given one's own; nothing else is ever opened."""
    name = _SPLIT_NAME.fullmatch(given.path.name)
    if name is None and count == 1:
        return [given.path.name]
    if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
        problem = f"by its keys it is part {number + 1} of {count}, but its name does not say so"
        advice = f"name it MODEL-{number + 1:05d}-of-{count:05d}.gguf and put the other parts next to it"
        raise given.bad("SPLIT_NAME", problem, advice)
    return [f"{name[1]}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def _check_all_there(given: Shard, names: list[str]) -> None:
    """Before any other part is opened. The search stops early: a bad count may claim 65,535 parts."""
    absent = (name for name in names if not given.path.with_name(name).is_file())
    missing = list(islice(absent, _MOST_NAMED + 1))
    if missing:
        more = " and more" if len(missing) > _MOST_NAMED else ""
        problem = f"of its {len(names)} parts these are missing: {', '.join(missing[:_MOST_NAMED])}{more}"
        raise given.bad("SPLIT_MISSING", problem, "download them into the same folder")


def _check_part(shard: Shard, first: Shard, place: tuple[int, int, int]) -> None:
    if _split_place(shard) != place:
        raise shard.bad("SPLIT_MISMATCH", f"its split keys do not make it part {place[0] + 1} of {place[1]}")
    for key, value in shard.header.metadata.items():
        if key not in _OWN_KEYS and first.header.metadata.get(key, value) != value:
            raise shard.bad("SPLIT_MISMATCH", f"key {key!r} differs from {first.path.name}: two models are mixed")


# -- what is odd but harmless


def _doubts_about_types(model: Gguf) -> list[str]:
    doubts = []
    found = {tensor.ggml_type for tensor in model.tensors.values()}
    names = {TYPES[ggml_type][0] for ggml_type in found if ggml_type in TYPES}
    for ggml_type in sorted(found - TYPES.keys()):
        doubts.append(f"tensors of {type_name(ggml_type)} cannot be used by this build")
    declared = model.metadata.get("general.file_type")
    main = FILE_TYPES.get(declared & ~_GUESSED) if isinstance(declared, int) else None
    if found and main is not None and main not in names:
        doubts.append(f"general.file_type {declared} says mostly {main}, but no tensor is {main}")
    if names - PLAIN_TYPES and "general.quantization_version" not in model.metadata:
        doubts.append("general.quantization_version is missing")
    return doubts
