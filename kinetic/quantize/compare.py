"""The bytes of a quantised file in turn, and where another file first has others.

for piece in compared(plan.parts[0], converter, source): ...
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetic.errors import Differs, MalformedGguf
from kinetic.gguf import Shard, Source, Tensor
from kinetic.gguf_types import type_name
from kinetic.quantize.plan import Part, Step
from kinetic.quantize.tensors import dimensions
from kinetic.quantize.write import padded

if TYPE_CHECKING:
    from kinetic.quantize.convert import Converter, Raw


class Piece(NamedTuple):
    """Bytes ``first`` and on of a step's tensor; its padding begins where the tensor ends. ``at`` is in the file."""

    step: Step
    first: int
    at: int
    data: Raw


def compared(part: Part, converter: Converter, other: Source | None) -> Generator[memoryview, None, None]:
    """All bytes of the file, piece by piece; each was found in ``other``, if there is one, before it is given out.

    Raises Differs, and what ``Converter.pieces`` raises.
    """
    header = part.header()
    if other is not None:
        _require_same_header(part, header, other)
    yield memoryview(header)
    with closing(_pieces(part, converter, len(header))) as pieces:
        for piece in pieces:
            if other is not None:
                _require_same(piece, other)
            yield piece.data.data


def _pieces(part: Part, converter: Converter, begin: int) -> Generator[Piece, None, None]:
    """Tensors and the padding after each; the first stands at ``begin``."""
    first = 0
    made: Any = converter.pieces(part.steps)  # A generator; closing it ends its threads.
    with closing(made):
        for step, data in made:
            yield Piece(step, first, begin + first, data)
            first += data.nbytes
            if first == step.nbytes:
                yield Piece(step, first, begin + first, np.zeros(padded(first) - first, np.uint8))
                begin, first = begin + padded(first), 0


# -- tensors


def _require_same(piece: Piece, other: Source) -> None:
    end = piece.at + piece.data.nbytes
    found = np.frombuffer(other.buffer[piece.at : end], np.uint8)
    if not np.array_equal(found, piece.data):
        at = piece.first + int(np.flatnonzero(found != piece.data)[0])
        name, size = piece.step.name, piece.step.nbytes
        where = f"byte {at:,} of the {size:,} of tensor {name!r}"
        if at >= size:
            where = f"byte {at - size} of the padding after tensor {name!r}"
        raise Differs(f"{where} is {found[at - piece.first]}, not {piece.data[at - piece.first]}", tensor=name, at=at)
    other.release(piece.at, piece.data.nbytes)


# -- what stands before them


def _require_same_header(part: Part, header: bytes, other: Source) -> None:
    """The same header, and as many bytes behind it."""
    found, size = len(other.buffer), part.size()
    if bytes(other.buffer[: len(header)]) == header and found == size:
        return
    try:
        theirs = Shard(other)
    except MalformedGguf as error:
        raise Differs(f"it is no sound GGUF file ({error})") from None
    _require_same_keys(part, theirs)
    for number, step in enumerate(part.steps):
        tensors = theirs.header.tensors
        _require_same_tensor(step, tensors[number] if number < len(tensors) else None, theirs)
    if len(theirs.header.tensors) > len(part.steps):
        name = theirs.header.tensors[len(part.steps)].name
        raise Differs(f"tensor {name!r} is one too many", tensor=name)
    raise Differs(
        f"version, alignment or places of its tensors are others, or its size ({found:,} bytes, not {size:,})"
    )


def _require_same_keys(part: Part, theirs: Shard) -> None:
    held = {name: bytes(theirs.source.buffer[begin:end]) for name, begin, end in theirs.records()}
    for key, record in part.keys.items():
        if held.get(key) != record:
            raise Differs(f"key {key!r} {'has another value' if key in held else 'is missing'}", key=key)
    for key in held:
        if key not in part.keys:
            raise Differs(f"key {key!r} is one too many", key=key)
    for key, found in zip(part.keys, held, strict=True):
        if key != found:
            raise Differs(f"key {found!r} stands where {key!r} should", key=found)


def _require_same_tensor(step: Step, tensor: Tensor | None, theirs: Shard) -> None:
    """Name, type and shape; where the data lies follows from them."""
    name = step.name
    if tensor is None or tensor.name != name:
        is_there = any(other.name == name for other in theirs.header.tensors)
        raise Differs(f"tensor {name!r} {'stands at another place' if is_there else 'is missing'}", tensor=name)
    if tensor.ggml_type != step.type_id:
        problem = f"tensor {name!r} is {type_name(tensor.ggml_type)}, not {step.choice.tensor_type}"
        raise Differs(problem, tensor=name)
    shape = step.source.shape[-dimensions(step.source.shape) :]
    if tensor.shape != shape:
        raise Differs(f"tensor {name!r} has the shape {tensor.shape}, not {shape}", tensor=name)
