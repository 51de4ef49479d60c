"""The keys of a GGUF file, as places in its bytes: enough to compare them, not to run a model.

    "GGUF" | version u32 | tensor count u64 | key count u64 | per key: name string | type u32 | value

All little-endian. A string is a u64 length and that many bytes, an array an
element type u32, a count u64 and the elements (GGUF specification of the ggml
project). No value is built: arrays of strings are walked, everything else is
skipped, and each length is compared with the bytes that are left before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from ktc.canonical import show
from ktc.errors import Malformed

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_SIZES = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, I64: 8, F64: 8}
_INTEGERS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", U64: "Q", I64: "q"}

SMALLEST_KEY = 8 + 1 + 4 + 1
"""Bytes: length of the name, one letter of name, type, a value of one byte."""

LONGEST_KEY = (1 << 16) - 1
LONGEST_HEAD = 1 << 28
"""Bytes before the end of the last key; real models have about 2^24."""

_FIRST_READ = 1 << 21

_TEMPLATE_PREFIX, _TOKENIZER_PREFIX = b"tokenizer.chat_template", b"tokenizer."

_U32, _U64 = Struct("<I"), Struct("<Q")
_HEADER, _ARRAY_HEAD = Struct("<4sIQQ"), Struct("<IQ")


class Key(NamedTuple):
    """One key: ``begin`` to ``end`` is its record (name, type, value) in the file, the value starts at ``value``."""

    name: bytes
    kind: int
    begin: int
    value: int
    end: int


class Keys(NamedTuple):
    """All keys of a file, in its order, and ``head``, the file's bytes up to the last key's end or beyond."""

    version: int
    tensor_count: int
    architecture: str
    keys: list[Key]
    head: bytes

    def tokenizer(self) -> bytes:
        """The canonical section of the tokenizer: b"" if there are no such keys."""
        return self.records(is_tokenizer)

    def template(self) -> bytes:
        """The canonical section of the chat templates: b"" if there are none."""
        return self.records(is_template)

    def records(self, wanted: Callable[[bytes], bool]) -> bytes:
        return join_records(self.head, self.places(wanted))

    def places(self, wanted: Callable[[bytes], bool]) -> list[tuple[bytes, int, int]]:
        """(name, begin, end) of the records of such keys, in bytewise order of their names."""
        return sorted((key.name, key.begin, key.end) for key in self.keys if wanted(key.name))


def is_template(name: bytes) -> bool:
    return name.startswith(_TEMPLATE_PREFIX)


def is_tokenizer(name: bytes) -> bool:
    return name.startswith(_TOKENIZER_PREFIX) and not is_template(name)


def join_records(buffer: bytes | memoryview, places: Sequence[tuple[bytes, int, int]]) -> bytes:
    """Records (name, begin, end) in bytewise order of their names, without anything between them."""
    return b"".join(bytes(buffer[begin:end]) for _, begin, end in sorted(places))


def read_keys(read: Callable[[int], bytes], size: int) -> Keys:
    """The keys of a GGUF file of ``size`` bytes; ``read(n)`` gives its first n bytes. Raises Malformed BAD_GGUF.

    Reads the beginning only, and more of it as long as the keys go on.
    """
    return _Scanner(read, size).scan()


def bad_gguf(problem: str) -> Malformed:
    return Malformed(f"the model file cannot be read as GGUF: {problem}", name="BAD_GGUF")


class _Scanner:
    """A position in a file of ``size`` bytes, and its first bytes, of which there are more as they are needed."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self.read, self.size, self.at = read, size, 0
        self.head = read(min(_FIRST_READ, size))
        self.keys: dict[bytes, Key] = {}

    def scan(self) -> Keys:
        version, tensors, count = self.counts()
        for _ in range(count):
            self.key()
        architecture = self.architecture()
        self.refuse_part()
        return Keys(version, tensors, architecture, list(self.keys.values()), self.head)

    # -- pieces

    def take(self, layout: Struct, what: str) -> tuple[Any, ...]:
        begin = self.at
        self.skip(layout.size, what)
        return layout.unpack_from(self.head, begin)

    def skip(self, length: int, what: str) -> int:
        """Where ``length`` bytes begin, which the file must have, and this program at hand."""
        begin, end = self.at, self.at + length
        if end > self.size:
            raise bad_gguf(f"{what} at byte {begin} needs {length} bytes, and {self.size - begin} are left")
        if end > len(self.head):
            self.fetch(end)
        self.at = end
        return begin

    def fetch(self, least: int) -> None:
        """Read on, up to byte ``least`` or beyond: twice as far each time, so that all reading is twice the last."""
        if least > LONGEST_HEAD:
            raise bad_gguf(f"its keys take more than {LONGEST_HEAD:,} bytes")
        self.head = self.read(min(max(2 * len(self.head), least), self.size))

    # -- header

    def counts(self) -> tuple[int, int, int]:
        magic, version, tensors, keys = self.take(_HEADER, "the header")
        if magic != b"GGUF":
            raise bad_gguf(f"it begins with {show(magic)}")
        if version not in (2, 3):
            big = ", which means a big-endian file" if version and version & 0xFFFF == 0 else ""
            raise bad_gguf(f"its version is {version}{big}, and only 2 and 3 are known")
        left = self.size - self.at
        if keys > left // SMALLEST_KEY:
            raise bad_gguf(f"it claims {keys} keys, which {left} bytes cannot hold")
        return version, tensors, keys

    # -- keys

    def key(self) -> None:
        begin = self.at
        (length,) = self.take(_U64, "a key")
        if not 1 <= length <= LONGEST_KEY:
            raise bad_gguf(f"the key at byte {begin} has {length} bytes, not 1 to {LONGEST_KEY}")
        start = self.skip(length, "a key")
        name = self.head[start : self.at]
        self.check_name(name, begin)
        (kind,) = self.take(_U32, f"key {show(name)}")
        value = self.at
        self.skip_value(name, kind)
        self.keys[name] = Key(name, kind, begin, value, self.at)

    def check_name(self, name: bytes, begin: int) -> None:
        if name in self.keys:
            raise bad_gguf(f"key {show(name)} stands in it twice")
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            raise bad_gguf(f"the key at byte {begin} is not UTF-8: {show(name)}") from None

    def skip_value(self, name: bytes, kind: int) -> None:
        what = f"the value of key {show(name)}"
        if kind == ARRAY:
            self.skip_array(what)
        elif kind == STRING:
            (length,) = self.take(_U64, what)
            self.skip(length, what)
        elif kind in _SIZES:
            begin = self.skip(_SIZES[kind], what)
            if kind == BOOL and self.head[begin] > 1:
                raise bad_gguf(f"{what} is a boolean with the byte {self.head[begin]}")
        else:
            raise bad_gguf(f"{what} is of the unknown type {kind}")

    def skip_array(self, what: str) -> None:
        kind, count = self.take(_ARRAY_HEAD, what)
        if kind == STRING:
            self.skip_strings(count, what)
        elif kind in _SIZES:
            begin = self.skip(count * _SIZES[kind], what)
            if kind == BOOL and self.head[begin : self.at].strip(b"\0\1"):
                raise bad_gguf(f"{what} is an array of booleans with a byte other than 0 and 1")
        else:
            raise bad_gguf(f"{what} is an array of the type {kind}, which arrays cannot hold")

    def skip_strings(self, count: int, what: str) -> None:
        """The one loop over a vocabulary, so it only adds lengths."""
        if count > (self.size - self.at) // 8:
            raise bad_gguf(f"{what} claims {count} strings, which {self.size - self.at} bytes cannot hold")
        begin, steps, length = self.at, repeat(None, count), _U64.unpack_from
        at, head = begin, self.head
        for _ in steps:
            try:
                at += 8 + length(head, at)[0]
            except (StructError, OverflowError):  # the string before goes on past the bytes at hand
                self.at = at
                self.skip(8, what)
                head = self.head
                at += 8 + length(head, at)[0]
        self.at = begin
        self.skip(at - begin, what)

    # -- the few values that are read

    def architecture(self) -> str:
        key = self.keys.get(b"general.architecture")
        if key is None or key.kind != STRING:
            raise bad_gguf("it has no text under the key 'general.architecture'")
        raw = self.head[key.value + 8 : key.end]
        if not raw or any(not 0x21 <= byte <= 0x7E for byte in raw):
            raise bad_gguf(f"'general.architecture' cannot be {show(raw)}")
        return raw.decode("ascii")

    def refuse_part(self) -> None:
        """One file of a split model is not a model."""
        key = self.keys.get(b"split.count")
        if key is None:
            return
        layout = _INTEGERS.get(key.kind)
        if layout is None or Struct(f"<{layout}").unpack_from(self.head, key.value)[0] > 1:
            raise bad_gguf("it is one part of a split model: join the parts first")
