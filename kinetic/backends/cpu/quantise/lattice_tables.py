"""Neighbours of the points that are not on a lattice, for its quantisers, in the order in which ggml tries them.

A point is 8 or 4 codes 0..levels - 1; its key is the number whose digits they are, the first the lowest. The
neighbours of a point that is not on the lattice are the lattice's points at the few smallest distances from it,
ordered by distance, equal ones by index (``iq2xs_init_impl`` and ``iq3xs_init_impl`` of ggml).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic import gguf_types
from kinetic.errors import NonFinite
from kinetic.formats import grids

DISTANCES = {"iq2_xxs": 2, "iq2_xs": 2, "iq2_s": 1, "iq3_xxs": 2, "iq3_s": 3, "iq1_s": 3}
"""How many different distances count as near, by lattice."""

LATTICES = {16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 21: "iq3_s", 22: "iq2_s", 29: "iq1_s"}
"""Lattice of each ggml type id."""

LANES = 8
"""Neighbours that are tried at once. A list is filled up to a multiple with its first, which then wins nothing."""

FAR = 255
"""More than any distance: 8 codes of 3 levels are at most 32 apart, 4 of 8 levels 196."""

POINT, FIRST, VALUES, NAMES, PACKED, STATUS, FIELDS = range(7)
"""Words of the record that a kernel gets: five addresses and a status, 0 until it finds no neighbour."""


class Neighbours(NamedTuple):
    """A lattice of P keys and N points.

    ``point`` int32 [P]: the lattice's point with this key, or -1. ``first`` int32 [P + 1]: where a key's groups of
    ``LANES`` neighbours start. ``values`` int8 [groups, width, LANES] and ``names`` int32 [groups, LANES]: the
    neighbours' values and points. ``packed`` uint32 [N]: a point's values, four bits each, the first lowest.
    A value is 2 * code + 1, for IQ1 the code.
    """

    point: NDArray[np.int32]
    first: NDArray[np.int32]
    values: NDArray[np.int8]
    names: NDArray[np.int32]
    packed: NDArray[np.uint32]


@lru_cache(maxsize=len(DISTANCES))
def neighbours(lattice: str) -> Neighbours:
    """The tables of a lattice of ``formats.grids``."""
    _, levels = grids.FORMS[lattice]
    codes = np.searchsorted(levels, grids.points(lattice)).astype(np.int8)  # [N, width]
    apart = distances(codes, len(levels))
    point = np.full(len(apart), -1, np.int32)
    point[number(codes, len(levels))] = np.arange(len(codes), dtype=np.int32)
    first, names = grouped(*near(apart, DISTANCES[lattice], point < 0), len(apart))
    values = codes if lattice == "iq1_s" else 2 * codes + 1
    packed = number(values, 16).astype(np.uint32)
    return Neighbours(point, first, np.ascontiguousarray(values[names].swapaxes(1, 2)), names, packed)


def number(digits: NDArray[np.int8], base: int) -> NDArray[np.int64]:
    """int64 [N]: the numbers of digits int8 [N, width], the first lowest."""
    made = np.zeros(len(digits), np.int64)
    for column in digits.T[::-1]:
        made = made * base + column
    return made


def record(ggml_type: int) -> NDArray[np.int64]:
    """What a kernel gets: the tables' addresses, for a lattice, and a status of its own."""
    made = np.zeros(FIELDS, np.int64)
    if ggml_type in LATTICES:
        made[: len(Neighbours._fields)] = [table.ctypes.data for table in neighbours(LATTICES[ggml_type])]
    return made


def check(record: NDArray[np.int64], ggml_type: int) -> None:
    """NonFinite if a kernel found no neighbour or no scale: sums of squares left float32."""
    if record[STATUS]:
        name = gguf_types.type_name(ggml_type)
        raise NonFinite(
            f"values or importances are not finite, or too large for {name}: their weighted squares leave float32; "
            "quantise this tensor to another type",
            name="VALUES_TOO_LARGE",
        )


def distances(codes: NDArray[np.int8], levels: int) -> NDArray[np.uint8]:
    """Squared distances uint8 [P, N] of every key's point from every point of the lattice, codes int8 [N, width]."""
    half = codes.shape[1] // 2
    digits = np.indices((levels,) * half).reshape(half, -1)[::-1].T  # [levels^half, half], the first fastest
    low, high = (
        _square_sum(digits[:, None, :] - part[None].astype(np.int64)) for part in (codes[:, :half], codes[:, half:])
    )
    return (high[:, None, :] + low[None, :, :]).reshape(-1, len(codes))


def _square_sum(differences: NDArray[np.int64]) -> NDArray[np.uint8]:
    return (differences * differences).sum(axis=2).astype(np.uint8)  # exact: integers


def near(apart: NDArray[np.uint8], count: int, wanted: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(keys, points) of all neighbours of the ``wanted`` keys: by key, then distance, then point."""
    rows = np.flatnonzero(wanted)
    apart = apart[rows]
    limit = apart.min(axis=1, keepdims=True)
    for _ in range(count - 1):
        limit = np.where(apart > limit, apart, np.uint8(FAR)).min(axis=1, keepdims=True)
    row, point = np.nonzero(apart <= limit)
    order = np.argsort(row * (FAR + 1) + apart[row, point], kind="stable")
    return rows[row[order]], point[order]


def grouped(key: NDArray[Any], point: NDArray[Any], keys: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """``first`` and ``names`` of neighbours that are sorted by key."""
    count = np.bincount(key, minlength=keys)
    start = np.cumsum(count) - count  # exact: integers
    groups = -(-count // LANES)
    first = np.concatenate([[0], np.cumsum(groups)])  # exact: integers
    owner = np.repeat(np.arange(keys), groups)  # [groups]: whose neighbours
    place = (np.arange(len(owner)) - first[owner])[:, None] * LANES + np.arange(LANES)
    names = point[start[owner][:, None] + np.where(place < count[owner][:, None], place, 0)]
    return first.astype(np.int32), names.astype(np.int32)
