"""Number tables of the GGUF format (tensor, value and whole-file types), and its array values.

Source: ggml.h, ggml-common.h and llama.h of llama.cpp b11434.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, unpack
from typing import Any, Final

_LENGTH: Final = Struct("<Q")

TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""Tensor type id -> (name, values per block, bytes per block)."""

REMOVED_TYPES: Final[dict[int, str]] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that old files may hold and that no program reads any more."""

VALUES: Final[dict[int, tuple[str, str]]] = {
    0: ("UINT8", "B"),
    1: ("INT8", "b"),
    2: ("UINT16", "H"),
    3: ("INT16", "h"),
    4: ("UINT32", "I"),
    5: ("INT32", "i"),
    6: ("FLOAT32", "f"),
    7: ("BOOL", "B"),
    8: ("STRING", ""),
    9: ("ARRAY", ""),
    10: ("UINT64", "Q"),
    11: ("INT64", "q"),
    12: ("FLOAT64", "d"),
}
"""Metadata value type id -> (name, ``struct`` code; empty for the types without a fixed size)."""

FILE_TYPES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q3_K",
    13: "Q3_K",
    14: "Q4_K",
    15: "Q4_K",
    16: "Q5_K",
    17: "Q5_K",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K",
    22: "IQ3_S",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_S",
    28: "IQ2_XS",
    29: "IQ2_S",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
"""``general.file_type`` -> the tensor type that most of such a file is made of."""

PLAIN_TYPES: Final = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def type_name(ggml_type: int) -> str:
    """Name of a tensor type for people, also of one that this build does not know."""
    if ggml_type in TYPES:
        return TYPES[ggml_type][0]
    if ggml_type in REMOVED_TYPES:
        return f"{REMOVED_TYPES[ggml_type]} (removed type {ggml_type})"
    return f"unknown type {ggml_type}"


class Array(Sequence[Any]):
    """An array value: decoded on first use, then kept. Equal to a list or tuple with the same items.

    Strings that are not UTF-8 keep their bytes as surrogate escapes:
    ``text.encode("utf-8", "surrogateescape")`` gives them back.
    """

    def __init__(self, key: str, kind: str, count: int, content: memoryview, warnings: list[str]) -> None:
        self.key, self.kind = key, kind
        self._count, self._content, self._warnings = count, content, warnings
        self._items: Sequence[Any] | None = None

    def content(self) -> bytes:
        """The items as they lie in the file, strings with their lengths."""
        return bytes(self._content)

    def _decoded(self) -> Sequence[Any]:
        if self._items is None:
            if self.kind == "STRING":
                self._items = _decode_strings(bytes(self._content), self._count)
                self._warn_about_bytes(self._items)
            else:
                code = next(code for name, code in VALUES.values() if name == self.kind)
                numbers = unpack(f"<{self._count}{code}", self._content)
                self._items = tuple(map(bool, numbers)) if self.kind == "BOOL" else numbers
        return self._items

    def _warn_about_bytes(self, items: Sequence[str]) -> None:
        whole = "".join(items)
        if "\0" in whole or _has_surrogate(whole):
            odd = sum("\0" in item or _has_surrogate(item) for item in items)
            self._warnings.append(f"key {self.key!r}: {odd} of {len(items)} strings hold NUL or are not UTF-8")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, tuple, Array)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count} x {self.kind}>"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _decode_strings(raw: bytes, count: int) -> list[str]:
    """``raw`` was walked when the file was opened, so its lengths are known to fit."""
    items, position, length = [], 0, _LENGTH.unpack_from
    for _ in range(count):
        start = position + 8
        position = start + length(raw, position)[0]
        items.append(raw[start:position].decode("utf-8", "surrogateescape"))
    return items
