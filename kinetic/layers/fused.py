"""Weights that a file keeps as one tensor, one above the other, seen as the several matrices that they are.

A part is a view: nothing is copied before rows are packed, and they are as rows of a tensor of its own would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight, Weights


def part(weight: Weight, name: str, first: int, rows: int) -> Weight:
    """Rows ``first`` to ``first + rows`` of ``weight`` [N, K] as the matrix ``name`` [rows, K]."""
    row_bytes = weight.data.shape[1]

    def release(offset: int, length: int) -> None:
        weight.release(first * row_bytes + offset, length)

    shape = (rows, weight.shape[1])
    return Weight(name, weight.ggml_type, shape, weight.data[first : first + rows], release, weight.name)


def split(weights: Weights, name: str, parts: Mapping[str, int]) -> dict[str, Weight]:
    """The tensor ``name`` as ``parts`` (name and rows of each, from the top); their rows are those of the tensor."""
    out, first = {}, 0
    for part_name, rows in parts.items():
        out[part_name] = part(weights[name], part_name, first, rows)
        first += rows
    return out


def split_experts(weights: Weights, name: str, parts: Mapping[str, int]) -> dict[str, Weight]:
    """The tensor ``name`` [X, N, K] as ``parts`` (name and rows of each in every expert, from the top)."""
    out, first = {}, 0
    for part_name, rows in parts.items():
        out[part_name] = _part_of_experts(weights[name], part_name, first, rows)
        first += rows
    return out


def _part_of_experts(weight: Weight, name: str, first: int, rows: int) -> Weight:
    """Rows ``first`` to ``first + rows`` of every expert. ``data`` is [X, rows, row bytes] and has gaps in memory."""
    count, whole, width = weight.shape
    row_bytes = weight.data.shape[-1]
    size = rows * row_bytes

    def release(offset: int, length: int) -> None:
        end = offset + length
        for number in range(offset // size, (end + size - 1) // size):
            begin, stop = max(offset, number * size), min(end, (number + 1) * size)
            weight.release((number * whole + first) * row_bytes + begin - number * size, stop - begin)

    data = weight.data.reshape(count, whole, row_bytes)[:, first : first + rows]
    return Weight(name, weight.ggml_type, (count, rows, width), data, release, weight.name)


def interleaved(weight: Weight, names: Sequence[str], heads: int) -> dict[str, Weight]:
    """Rows of ``heads`` heads [N, K], each head's rows of the first part and then those of the next, as matrices."""
    rows, columns = weight.shape
    shape = (heads, len(names), rows // heads // len(names), weight.data.shape[1])
    views = weight.data.reshape(shape)
    return {name: _piece(weight, name, (rows // len(names), columns), views[:, i]) for i, name in enumerate(names)}


def columns(weight: Weight, names: Sequence[str]) -> dict[str, Weight]:
    """The columns of ``weight`` [N, K] as matrices of equal width, from the left; that must be a number of blocks."""
    rows, width = weight.shape
    views = weight.data.reshape(rows, len(names), -1)
    return {name: _piece(weight, name, (rows, width // len(names)), views[:, i]) for i, name in enumerate(names)}


def _piece(weight: Weight, name: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> Weight:
    return Weight(name, weight.ggml_type, shape, data, _when_read(weight, data.nbytes), weight.name)


def _when_read(weight: Weight, size: int) -> Callable[[int, int], None]:
    """Bytes of a piece lie all over its tensor: the memory behind them is given back after the last of ``size``."""

    def release(offset: int, length: int) -> None:
        if offset + length == size:
            weight.release(0, weight.data.nbytes)

    return release
