"""Weights that a file keeps as one tensor, one above the other, seen as the several matrices that they are.

A part is a view of whole rows: nothing is copied, and rows are packed as they would be in a tensor of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

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
