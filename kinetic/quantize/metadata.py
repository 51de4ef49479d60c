"""The keys of a quantised file, as bytes in the order that llama.cpp writes them.

A key that is set again moves to the end. So the source's keys come first, then what the quantiser says, then
overrides, then the importance matrix and, in a pruned file, the number of layers that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from struct import Struct, pack
from typing import Any, Final

from kinetic.gguf import Gguf, Shard
from kinetic.gguf_parse import DEFAULT_ALIGNMENT
from kinetic.gguf_types import VALUES, Array, type_name
from kinetic.quantize.importance import Importance
from kinetic.quantize.recipe import LONGEST_TEXT, Override, Recipe
from kinetic.quantize.tensors import order
from kinetic.quantize.types import FILE_TYPES

QUANTIZATION_VERSION: Final = 2
GUESSED: Final = 1024
"""Added to a file type that no key names, when llama.cpp tells it by the most frequent tensor type."""
SPLIT_KEYS: Final = ("split.no", "split.count", "split.tensors.count")
_ALIGNMENT: Final = "general.alignment"

_U32, _U64 = Struct("<I"), Struct("<Q")
_CODES: Final = {name: (number, layout) for number, (name, layout) in VALUES.items()}

_MOST_OF: Final = {
    **{name: number for name, number, _, _, mixture in FILE_TYPES if name == mixture and name != "COPY"},
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "NVFP4": 39,
}
"""Most frequent tensor type -> the file type it stands for. MXFP4 isn't told."""


class Keys(dict[str, bytes]):
    """Key -> the bytes of its record: name, type and value."""

    def put(self, key: str, kind: str, value: Any) -> None:
        """At the end, also what is there already."""
        self.pop(key, None)
        self[key] = _record(key, kind, value)

    def put_strings(self, key: str, items: Sequence[str]) -> None:
        """A list of strings, each up to a NUL."""
        self.pop(key, None)
        self[key] = _list_record(key, items)

    def put_override(self, override: Override) -> None:
        self.put(override.key, override.kind, override.value)


def _record(key: str, kind: str, value: Any) -> bytes:
    number, layout = _CODES[kind]
    raw = _text(value) if kind == "STRING" else pack("<" + layout, value)
    return _text(key.encode("utf-8", "surrogateescape")) + _U32.pack(number) + raw


def _list_record(key: str, items: Sequence[str]) -> bytes:
    """Strings end at a NUL, as llama.cpp copies them."""
    head = _text(key.encode()) + _U32.pack(_CODES["ARRAY"][0]) + _U32.pack(_CODES["STRING"][0])
    return head + _U64.pack(len(items)) + b"".join(map(_cut, items))


def _text(raw: bytes) -> bytes:
    return _U64.pack(len(raw)) + raw


def quantised_keys(source: Gguf, recipe: Recipe, importance: Importance | None) -> Keys:
    """Those of a single file, or of the first part."""
    keys = copied_keys(source.shards[0])
    keys.put("general.quantization_version", "UINT32", QUANTIZATION_VERSION)
    keys.put("general.file_type", "UINT32", _file_type(source, recipe))
    for key in SPLIT_KEYS:
        keys.pop(key, None)
    for override in recipe.overrides:
        keys.put_override(override)
    if importance is not None:
        _add_importance(keys, importance)
    return keys


def copied_keys(shard: Shard) -> Keys:
    """As they stand in a file, but for strings in lists that hold a NUL."""
    keys = Keys()
    for name, begin, end in shard.records():
        value = shard.header.metadata[name]
        keys[name] = bytes(shard.source.buffer[begin:end])
        if isinstance(value, Array) and value.kind == "STRING" and any("\0" in item for item in value):
            keys[name] = _list_record(name, value)
    if shard.header.alignment != DEFAULT_ALIGNMENT:
        # What is written is aligned by default, and has to say so.
        keys[_ALIGNMENT] = _record(_ALIGNMENT, "UINT32", DEFAULT_ALIGNMENT)
    return keys


def _cut(item: str) -> bytes:
    return _text(item.split("\0")[0].encode("utf-8", "surrogateescape"))


def _file_type(source: Gguf, recipe: Recipe) -> int:
    """For a copy, what the source says of itself, or what its tensors say."""
    key = "general.file_type"
    if not recipe.copies:
        return recipe.file_type.number
    given = next((o for o in recipe.overrides if o.key == key and o.kind == "UINT32"), None)
    if given is not None:
        return int(given.value)
    value = source.metadata.get(key)
    return value if type(value) is int else _guessed(source) | GUESSED


def _guessed(source: Gguf) -> int:
    """Of types that are equally frequent, the one that was so first."""
    seen: Counter[int] = Counter()
    most, most_seen = 0, 0
    for name in sorted(source.tensors, key=order):
        ggml_type = source.tensors[name].ggml_type
        seen[ggml_type] += 1
        if seen[ggml_type] > most_seen:
            most, most_seen = ggml_type, seen[ggml_type]
    return _MOST_OF.get(type_name(most), 0)


def _add_importance(keys: Keys, importance: Importance) -> None:
    keys.put("quantize.imatrix.file", "STRING", _short(importance.path))
    if importance.dataset is not None:
        keys.put("quantize.imatrix.dataset", "STRING", _short(importance.dataset))
    keys.put("quantize.imatrix.entries_count", "UINT32", len(importance.entries))
    if importance.chunks > 0:
        keys.put("quantize.imatrix.chunks_count", "UINT32", importance.chunks)


def _short(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:LONGEST_TEXT].split(b"\0")[0]


def add_split(keys: Keys, number: int, count: int, tensors: int) -> Keys:
    """What each part of a split file says of its place."""
    for key, kind, value in zip(SPLIT_KEYS, ("UINT16", "UINT16", "INT32"), (number, count, tensors), strict=True):
        keys.put(key, kind, value)
    return keys
