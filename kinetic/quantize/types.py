"""The names that a whole file's weight type can be asked by, and the names of tensor types.

Numbers, defaults and sizes are those of llama.cpp b11434 (llama.h, tools/quantize), perplexities as measured there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kinetic.errors import UsageError
from kinetic.gguf_types import FILE_TYPES as MOSTLY
from kinetic.gguf_types import TYPES


class FileType(NamedTuple):
    """One way to quantise a file. ``mixture`` names the rules that choose each tensor's type (choice.py)."""

    name: str
    number: int
    """``general.file_type`` of the result; COPY keeps what the source says."""
    tensor_type: str
    """What most tensors become."""
    about: str
    mixture: str


COPY: Final = "COPY"

_LLAMA3: Final = "on Llama 3 8B"
_ROWS: Final = (
    ("Q1_0", 40, "1.125 bits a weight"),
    ("Q2_0", 41, "2.25 bits a weight, groups of 64"),
    ("Q4_0", 2, f"4.34 GB, perplexity +0.4685 {_LLAMA3}"),
    ("Q4_1", 3, f"4.78 GB, perplexity +0.4511 {_LLAMA3}"),
    ("MXFP4_MOE", 38, "MXFP4 for experts, Q8_0 for the rest"),
    ("Q5_0", 8, f"5.21 GB, perplexity +0.1316 {_LLAMA3}"),
    ("Q5_1", 9, f"5.65 GB, perplexity +0.1062 {_LLAMA3}"),
    ("IQ2_XXS", 19, "2.06 bits a weight"),
    ("IQ2_XS", 20, "2.31 bits a weight"),
    ("IQ2_S", 28, "2.5 bits a weight"),
    ("IQ2_M", 29, "2.7 bits a weight"),
    ("IQ1_S", 24, "1.56 bits a weight"),
    ("IQ1_M", 31, "1.75 bits a weight"),
    ("TQ1_0", 36, "1.69 bits a weight, ternary"),
    ("TQ2_0", 37, "2.06 bits a weight, ternary"),
    ("Q2_K", 10, f"2.96 GB, perplexity +3.5199 {_LLAMA3}"),
    ("Q2_K_S", 21, f"2.96 GB, perplexity +3.1836 {_LLAMA3}"),
    ("IQ3_XXS", 23, "3.06 bits a weight"),
    ("IQ3_S", 26, "3.44 bits a weight"),
    ("IQ3_M", 27, "3.66 bits a weight, mixed"),
    ("Q3_K", 12, "Q3_K_M by a shorter name"),
    ("IQ3_XS", 22, "3.3 bits a weight"),
    ("Q3_K_S", 11, f"3.41 GB, perplexity +1.6321 {_LLAMA3}"),
    ("Q3_K_M", 12, f"3.74 GB, perplexity +0.6569 {_LLAMA3}"),
    ("Q3_K_L", 13, f"4.03 GB, perplexity +0.5562 {_LLAMA3}"),
    ("IQ4_NL", 25, "4.50 bits a weight"),
    ("IQ4_XS", 30, "4.25 bits a weight"),
    ("Q4_K", 15, "Q4_K_M by a shorter name"),
    ("Q4_K_S", 14, f"4.37 GB, perplexity +0.2689 {_LLAMA3}"),
    ("Q4_K_M", 15, f"4.58 GB, perplexity +0.1754 {_LLAMA3}"),
    ("Q5_K", 17, "Q5_K_M by a shorter name"),
    ("Q5_K_S", 16, f"5.21 GB, perplexity +0.1049 {_LLAMA3}"),
    ("Q5_K_M", 17, f"5.33 GB, perplexity +0.0569 {_LLAMA3}"),
    ("Q6_K", 18, f"6.14 GB, perplexity +0.0217 {_LLAMA3}"),
    ("Q8_0", 7, f"7.96 GB, perplexity +0.0026 {_LLAMA3}"),
    ("F16", 1, "14.00 GB, perplexity +0.0020 on Mistral 7B"),
    ("BF16", 32, "14.00 GB, perplexity -0.0050 on Mistral 7B"),
    ("F32", 0, "26.00 GB for 7B"),
    (COPY, 0, "tensors as they are, no quantising"),
)
_ALIASES: Final = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

FILE_TYPES: Final = tuple(
    FileType(name, number, MOSTLY[number], about, _ALIASES.get(name, name)) for name, number, about in _ROWS
)
"""In llama-quantize's order: of those with the same number, the first is meant by it."""

TYPE_IDS: Final = {name: number for number, (name, _, _) in TYPES.items()}
"""Tensor type name, in capitals -> ggml type id."""

BLOCKS: Final = {name: block for name, block, _ in TYPES.values()}
"""Tensor type name -> values in a block."""


def find_file_type(text: str) -> FileType | None:
    """By name or number, capitals or not; None if there is none."""
    number = (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else ""
    for file_type in FILE_TYPES:
        if text.upper() == file_type.name or number == str(file_type.number):
            return file_type
    return None


def file_type(text: str) -> FileType:
    """As find_file_type. Raises UsageError."""
    found = find_file_type(text)
    if found is None:
        problem = f"{text!r} is no type that a file can be quantised to"
        raise UsageError(f"{problem}: `kinetic quantize --help` lists them all", name="UNKNOWN_TYPE")
    return found


def tensor_type(text: str) -> str:
    """The name of a tensor type, written with capitals or not. Raises UsageError."""
    if text.upper() not in TYPE_IDS:
        known = ", ".join(sorted(TYPE_IDS))
        raise UsageError(f"{text!r} is no tensor type: it can be one of {known}", name="UNKNOWN_TENSOR_TYPE")
    return text.upper()


def row_bytes(name: str, values: int) -> int:
    """Bytes of a row of ``values``, which must be whole blocks."""
    _, block, size = TYPES[TYPE_IDS[name]]
    return values // block * size
