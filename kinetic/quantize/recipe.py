"""What to do with a model file: every setting that decides a byte of the result, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import error as StructError
from struct import pack

from kinetic.errors import UsageError
from kinetic.quantize.patterns import Pattern
from kinetic.quantize.types import FileType, tensor_type

Value = int | float | bool | bytes

LONGEST_KEY, LONGEST_TEXT = 127, 127
"""Bytes of an overridden key and of its text: llama-quantize's own limits."""


@dataclass(frozen=True, slots=True)
class Override:
    """A key to be set: ``kind`` as GGUF names it (UINT32, FLOAT32, BOOL, STRING)."""

    key: str
    kind: str
    value: Value


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one quantisation. Type names are in capitals, as in kinetic.gguf_types."""

    file_type: FileType
    output_type: str = ""
    """For ``output.weight``, and the embedding that takes its place; "" leaves the choice to the rules."""
    embedding_type: str = ""
    tensor_types: tuple[tuple[str, str], ...] = ()
    """Regular expressions (patterns.py) searched for in tensor names, and the type of what the first match names."""
    pure: bool = False
    leave_output: bool = False
    allow_requantize: bool = False
    no_fallback: bool = False
    prune: frozenset[int] = frozenset()
    keep_split: bool = False
    overrides: tuple[Override, ...] = ()

    @property
    def copies(self) -> bool:
        """Whether every tensor stays as it is."""
        return self.file_type.name == "COPY"


def parse_tensor_type(text: str) -> tuple[str, str]:
    """``NAME=TYPE`` -> pattern in small letters, type. Raises UsageError."""
    pattern, equals, name = text.partition("=")
    if not (pattern and equals and name):
        raise UsageError(f"{text!r} is no NAME=TYPE, as in attn_q=q8_0", name="BAD_TENSOR_TYPE")
    pattern = pattern.lower()
    Pattern(pattern)
    return pattern, tensor_type(name)


def parse_layers(text: str) -> frozenset[int]:
    """``L0,L1,L2`` -> layer numbers. Raises UsageError."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(f"{text!r} is no list of layers, as in 3,4,5", name="BAD_LAYERS")
    return frozenset(map(int, words))


def parse_override(text: str) -> Override:
    """``KEY=TYPE:VALUE`` with TYPE int, float, bool or str. Raises UsageError.

    As in llama.cpp an integer is written as UINT32, without its sign, and a float as FLOAT32.
    """
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not is_utf8(key):
        raise _bad_override(ascii(text), "its key must be UTF-8")
    if not (key and equals and colon) or len(key.encode()) > LONGEST_KEY:
        raise _bad_override(text, "it must be KEY=TYPE:VALUE, with a key of at most 127 bytes")
    if kind not in _CONVERT:
        raise _bad_override(text, "its type must be int, float, bool or str")
    try:
        override = Override(key, *_CONVERT[kind](value))
    except (ValueError, OverflowError, StructError):
        raise _bad_override(text, f"its value must fit {kind}") from None
    if key == "general.alignment" and override != Override(key, "UINT32", 32):
        raise _bad_override(text, "the alignment of a written file is 32")
    return override


def is_utf8(text: str) -> bool:
    """Not so where the command line holds other bytes, which Python passes on as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _bad_override(text: str, problem: str) -> UsageError:
    return UsageError(f"--override-kv {text}: {problem}", name="BAD_OVERRIDE")


def _integer(text: str) -> tuple[str, Value]:
    value = abs(int(_plain(text)))
    pack("<I", value)
    return "UINT32", value


def _plain(text: str) -> str:
    """Without the liberties of Python, which reads 1_0 and digits of other scripts too."""
    if not text.isascii() or "_" in text or text != text.strip():
        raise ValueError(text)
    return text


def _float(text: str) -> tuple[str, Value]:
    value = float(_plain(text))
    pack("<f", value)
    return "FLOAT32", value


def _bool(text: str) -> tuple[str, Value]:
    if text not in ("true", "false"):
        raise ValueError(text)
    return "BOOL", text == "true"


def _text(text: str) -> tuple[str, Value]:
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > LONGEST_TEXT:
        raise ValueError(text)
    return "STRING", raw


_CONVERT: dict[str, Callable[[str], tuple[str, Value]]] = {
    "int": _integer,
    "float": _float,
    "bool": _bool,
    "str": _text,
}
"""How llama.cpp names the types of values."""
