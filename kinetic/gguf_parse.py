"""Bytes of one GGUF file -> its header, with every field checked before it is believed.

Layout, all little-endian (GGUF specification of the ggml project):

    "GGUF" | version u32 | tensor count u64 | key count u64
    per key      name string | value type u32 | value
    per tensor   name string | number of dimensions u32 | each dimension u64 | type u32 | offset u64
    padding | per tensor: its data, padded to the alignment

A string is a u64 length and that many bytes; an array is an element type u32, a
count u64 and the elements. A size is compared with the bytes that are left before
anything is read, skipped or allocated by it. Python integers do not wrap, so the
limits of 64 bits are checked where other readers would overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from kinetic.errors import MalformedGguf
from kinetic.gguf_types import TYPES, VALUES, Array

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_HEADER: Final = Struct("<4sIQQ")
_ARRAY: Final = Struct("<IQ")
_TYPE_AND_OFFSET: Final = Struct("<iQ")

SMALLEST_KEY: Final = 8 + 1 + 4 + 1
"""Bytes: name length, one letter of name, value type, a one-byte value."""
SMALLEST_TENSOR: Final = 8 + 1 + 4 + 8 + 4 + 8
"""Bytes: name length, one letter of name, dimension count, one dimension, type, offset."""
MOST_RECORDS: Final = 1 << 20
"""Keys or tensors in a file; the largest real models hold a few thousand."""
LONGEST_KEY: Final = (1 << 16) - 1
LONGEST_STRING: Final = 1 << 28
"""Bytes. The longest real values, whole tokenizer.json texts, have about 2^25."""
LONGEST_ARRAY: Final = 1 << 30
ALIGNMENTS: Final = frozenset(1 << i for i in range(3, 21))
"""The specification asks for a multiple of 8, llama.cpp for a power of two; 1 MiB bounds the padding."""
DEFAULT_ALIGNMENT: Final = 32
LONGEST_TENSOR_NAME: Final = 63
MOST_DIMENSIONS: Final = 4
INT64_MAX: Final = (1 << 63) - 1
AGAIN: Final = "download or convert it again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies. ``shape`` is row-major: the last dimension is contiguous (GGUF stores it first)."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    """Bytes from the start of its file."""
    nbytes: int
    """Exact size in bytes, or -1 if the type is not in ``TYPES``."""
    shard: int = 0
    """Index into ``Gguf.paths``."""


@dataclass(slots=True)
class Header:
    """What one file says before its tensor data, plus ``warnings`` for what is odd but harmless."""

    version: int
    metadata: dict[str, Any]
    types: dict[str, str]
    alignment: int
    tensors: list[Tensor]
    warnings: list[str]
    padding: list[tuple[int, int]]
    """Byte ranges between header and tensors, and between tensors, that must be zero."""
    end: int
    """Where the last tensor stops, or -1 if its type and so its size is unknown."""


def parse(buffer: memoryview, where: str) -> Header:
    """Check and read the header of one file, touching no data. ``where`` names it in messages. Raises MalformedGguf."""
    return _Parser(buffer, where).parse()


def check_padding(buffer: memoryview, where: str, header: Header) -> None:
    """Everything between and after the tensors must be zero. Raises MalformedGguf; may add a warning.

    Apart from ``parse`` because it reads all over the file.
    """
    for start, stop in header.padding:
        if bytes(buffer[start:stop]).strip(b"\0"):
            raise _refusal(where, "NONZERO_PADDING", f"the padding at the bytes {start} to {stop} is not zero")
    if header.end >= 0:
        _check_rest(buffer, where, header)


def _check_rest(buffer: memoryview, where: str, header: Header) -> None:
    """After the last tensor: nothing, its padding, or a few more zeros; never something else."""
    end, padded = header.end, _padded(header.end, header.alignment)
    if b"GGUF" in (buffer[end : end + 4], buffer[padded : padded + 4]):
        problem = f"a second GGUF file begins after the last tensor at byte {end}"
        advice = "keep split files apart or join them with llama-gguf-split --merge"
        raise _refusal(where, "SPLIT_JOINED", problem, advice)
    extra = len(buffer) - padded
    if extra > max(ALIGNMENTS) or bytes(buffer[end:]).strip(b"\0"):
        problem = f"{len(buffer) - end} bytes that belong to no tensor follow the last one at byte {end}"
        raise _refusal(where, "TRAILING_DATA", problem)
    if extra > 0:
        header.warnings.append(f"{where}: {extra} unused zero bytes follow the last tensor")


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _refusal(where: str, reason: str, problem: str, advice: str = AGAIN) -> MalformedGguf:
    return MalformedGguf(f"{where}: {problem}; {advice}", name=reason)


class _Parser:
    """A position in the bytes of one file, and one method for each part of the layout."""

    def __init__(self, buffer: memoryview, where: str) -> None:
        self.buffer, self.where = buffer, where
        self.at = 0
        self.metadata: dict[str, Any] = {}
        self.types: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self.warnings: list[str] = []

    def parse(self) -> Header:
        version, tensor_count, key_count = self.read_counts()
        for _ in range(key_count):
            self.read_key()
        self.alignment = self.checked_alignment()
        for _ in range(tensor_count):
            self.read_tensor()
        padding, end = self.lay_out()
        tensors = list(self.tensors.values())
        return Header(version, self.metadata, self.types, self.alignment, tensors, self.warnings, padding, end)

    # -- small pieces

    def bad(self, reason: str, problem: str, advice: str = AGAIN) -> MalformedGguf:
        return _refusal(self.where, reason, problem, advice)

    def take(self, layout: Struct, what: str) -> tuple[Any, ...]:
        try:
            values = layout.unpack_from(self.buffer, self.at)
        except StructError:
            raise self.bad("TRUNCATED", f"the file ends inside {what} at byte {self.at}", "download it again") from None
        self.at += layout.size
        return values

    def take_string(self, what: str, longest: int, reason: str = "BAD_STRING") -> str:
        """One string that must be UTF-8 without NUL: a name or a single value, never a token."""
        begin, length = self.at, self.take(_U64, what)[0]
        left = len(self.buffer) - self.at
        if length > left:
            raise self.bad("BAD_STRING", f"{what} at byte {begin} claims {length} bytes, but {left} are left")
        if length > longest:
            raise self.bad(reason, f"{what} at byte {begin} has {length} bytes, more than the {longest} allowed")
        raw = bytes(self.buffer[self.at : self.at + length])
        self.at += length
        if b"\0" in raw:
            raise self.bad(reason, f"{what} at byte {begin} contains NUL")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad("BAD_UTF8", f"{what} at byte {begin} is not UTF-8: {raw[:40]!r}") from None

    # -- header

    def read_counts(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of keys."""
        self.check_magic(bytes(self.buffer[:32]))
        _, version, tensors, keys = self.take(_HEADER, "the header")
        self.check_version(version)
        left = len(self.buffer) - self.at
        for reason, what, count, smallest in (
            ("BAD_TENSOR_COUNT", "tensors", tensors, SMALLEST_TENSOR),
            ("BAD_KEY_COUNT", "keys", keys, SMALLEST_KEY),
        ):
            if count > min(left // smallest, MOST_RECORDS):
                hint = ", perhaps because it is big-endian" if count >> 32 else ""
                raise self.bad(reason, f"the header claims {count} {what}, which {left} bytes cannot hold{hint}")
        return version, tensors, keys

    def check_magic(self, head: bytes) -> None:
        if not head:
            raise self.bad("EMPTY_FILE", "the file is empty", "download it again")
        if b"GGUF".startswith(head[:4]):
            return
        guess = "it is not a GGUF file"
        if head.startswith(b"version https://git-lfs"):
            guess = "it is a Git LFS pointer, not the model itself"
        elif head.lstrip()[:1] == b"<":
            guess = "it looks like a web page, not a model"
        raise self.bad("BAD_MAGIC", f"the file starts with {head[:4]!r} instead of b'GGUF': {guess}", "download a GGUF")

    def check_version(self, version: int) -> None:
        if version in (2, 3):
            return
        if version and version & 0xFFFF == 0:
            problem = f"the version reads {version:#010x}, which means a big-endian file"
            raise self.bad("BIG_ENDIAN", problem, "convert it to little-endian with gguf_convert_endian.py")
        raise self.bad("BAD_VERSION", f"GGUF version {version} is not supported, only 2 and 3 are", "convert it again")

    # -- metadata

    def read_key(self) -> None:
        begin = self.at
        key = self.take_string("a key", LONGEST_KEY, "BAD_KEY")
        if not key:
            raise self.bad("BAD_KEY", f"the key at byte {begin} is empty")
        if key in self.metadata:
            raise self.bad("DUPLICATE_KEY", f"key {key!r} appears twice")
        (code,) = self.take(_U32, f"key {key!r}")
        kind, value = self.read_value(key, code)
        self.types[key], self.metadata[key] = kind, value

    def value_type(self, key: str, code: int) -> tuple[str, str]:
        if code not in VALUES:
            raise self.bad("BAD_VALUE_TYPE", f"key {key!r} has value type {code}, but types end at {max(VALUES)}")
        return VALUES[code]

    def read_value(self, key: str, code: int) -> tuple[str, Any]:
        kind, layout = self.value_type(key, code)
        what = f"key {key!r}"
        if kind == "ARRAY":
            return self.read_array(key)
        if kind == "STRING":
            return kind, self.take_string(f"the value of {what}", LONGEST_STRING)
        (value,) = self.take(Struct("<" + layout), what)
        if kind != "BOOL":
            return kind, value
        if value > 1:
            raise self.bad("BAD_BOOL", f"{what} is a boolean with the byte {value} instead of 0 or 1")
        return kind, bool(value)

    def read_array(self, key: str) -> tuple[str, Array]:
        code, count = self.take(_ARRAY, f"key {key!r}")
        kind, layout = self.value_type(key, code)
        if kind == "ARRAY":
            raise self.bad("NESTED_ARRAY", f"key {key!r} is an array of arrays")
        size = Struct("<" + layout).size or 8  # A string takes at least its length.
        left = len(self.buffer) - self.at
        if count > min(left // size, LONGEST_ARRAY):
            problem = f"key {key!r} claims an array of {count} {kind} values, which {left} bytes cannot hold"
            raise self.bad("BAD_ARRAY", problem)
        start = self.at
        if kind == "STRING":
            self.skip_strings(key, count)
        else:
            self.at += count * size
        content = self.buffer[start : self.at]
        if kind == "BOOL" and bytes(content).strip(b"\0\1"):
            raise self.bad("BAD_BOOL", f"key {key!r} is an array of booleans with a byte other than 0 and 1")
        return f"ARRAY[{kind}]", Array(key, kind, count, content, self.warnings)

    def skip_strings(self, key: str, count: int) -> None:
        """The one loop over a whole vocabulary, so it only adds lengths (about 50 ms for 262,144 tokens)."""
        position, buffer, length = self.at, self.buffer, _U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + length(buffer, position)[0]
            fits = position <= len(buffer)
        except (StructError, OverflowError):  # The previous string led past the end.
            fits = False
        if not fits:
            raise self.bad("BAD_STRING", f"a string in the array of key {key!r} (from byte {self.at}) passes the end")
        self.at = position

    def checked_alignment(self) -> int:
        value, kind = self.metadata.get("general.alignment"), self.types.get("general.alignment")
        if kind is None:
            return DEFAULT_ALIGNMENT
        if kind != "UINT32" or value not in ALIGNMENTS:
            problem = f"key 'general.alignment' is {value!r} ({kind})"
            advice = f"it must be a UINT32 power of two from {min(ALIGNMENTS)} to {max(ALIGNMENTS)}: convert it again"
            raise self.bad("BAD_ALIGNMENT", problem, advice)
        return int(value)

    # -- tensors

    def read_tensor(self) -> None:
        name = self.take_string("a tensor name", LONGEST_TENSOR_NAME, "BAD_TENSOR_NAME")
        if not name:
            raise self.bad("BAD_TENSOR_NAME", f"the tensor name before byte {self.at} is empty")
        if name in self.tensors:
            raise self.bad("DUPLICATE_TENSOR", f"tensor {name!r} appears twice")
        what = f"tensor {name!r}"
        (count,) = self.take(_U32, what)
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self.bad("BAD_DIMENSIONS", f"{what} has {count} dimensions instead of 1 to {MOST_DIMENSIONS}")
        shape = self.take(Struct(f"<{count}Q"), what)[::-1]
        ggml_type, offset = self.take(_TYPE_AND_OFFSET, what)
        nbytes = self.tensor_bytes(what, shape, ggml_type)
        self.tensors[name] = Tensor(name, shape, ggml_type, offset, nbytes)

    def tensor_bytes(self, what: str, shape: tuple[int, ...], ggml_type: int) -> int:
        if 0 in shape:
            raise self.bad("ZERO_DIMENSION", f"{what} has a dimension of 0 in its shape {shape}")
        values = math.prod(shape)
        name, block, size = TYPES.get(ggml_type, ("", 1, 1))
        if shape[-1] % block:
            raise self.bad("BAD_ROW_LENGTH", f"{what} has rows of {shape[-1]} values, no multiple of {name}'s {block}")
        nbytes = values // block * size
        if max(values, nbytes) > INT64_MAX:
            raise self.bad("SIZE_OVERFLOW", f"{what} has the shape {shape}, too large for 63 bits")
        return nbytes if name else -1

    # -- data

    def lay_out(self) -> tuple[list[tuple[int, int]], int]:
        """Place the data: it follows the header in order and aligned, without holes, inside the file.

        What comes after a tensor of unknown type cannot be placed exactly, because its
        size is not known. Returns the padding and where the last tensor stops, or -1.
        """
        tensors = list(self.tensors.values())
        if sum(_padded(tensor.nbytes, self.alignment) for tensor in tensors) > INT64_MAX:
            raise self.bad("SIZE_OVERFLOW", "the tensors together are too large for 63 bits")
        data, end, exact, padding = _padded(self.at, self.alignment), self.at, True, []
        for tensor in tensors:
            placed = replace(tensor, offset=data + tensor.offset)
            self.check_place(placed, end, exact)
            self.tensors[tensor.name] = placed
            if exact and placed.offset > end:
                padding.append((end, placed.offset))
            exact = tensor.nbytes >= 0
            end = placed.offset + max(tensor.nbytes, 0)
        return padding, end if exact else -1

    def check_place(self, tensor: Tensor, end: int, exact: bool) -> None:
        """``end`` is where the data before this tensor stops, or starts if not ``exact``."""
        what, start, stop = f"tensor {tensor.name!r}", tensor.offset, tensor.offset + max(tensor.nbytes, 0)
        if start % self.alignment:
            raise self.bad("BAD_OFFSET", f"{what} starts at byte {start}, no multiple of {self.alignment}")
        if stop > len(self.buffer):
            problem = f"{what} needs the bytes {start} to {stop}, but the file has {len(self.buffer)}"
            raise self.bad("OUT_OF_FILE", problem, "download it again")
        expected = _padded(end, self.alignment)
        if start < (expected if exact else end):
            raise self.bad("OVERLAP", f"{what} starts at byte {start}, inside the data before it")
        if exact and start > expected:
            raise self.bad("GAP", f"{what} starts at byte {start}, but the data before it ends at {end}")
