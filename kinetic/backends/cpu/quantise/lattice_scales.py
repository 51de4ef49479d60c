"""The scale of a sub-block and its points, for IQ2 and IQ3: some scales are tried, and the best is refined.

Imported only by the build process. 'x' are a sub-block's values without most of their signs, 'w' their weights,
'root' the weights' roots, which distances are weighted with. Sums run over the values in order; those of several
scales lie in lanes, which no sum crosses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kinetic.backends.cpu.emitted import field
from kinetic.backends.cpu.quantise.lattice_search import OFF, make_snapped
from kinetic.backends.cpu.quantise.lattice_tables import PACKED
from kinetic.backends.cpu.quantise.memory import floats, ints, ints_at, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO

VECTOR = 8
"""The number of lanes is a multiple."""


class Shape(NamedTuple):
    """A format's sub-blocks."""

    size: int
    """Values."""
    width: int
    """Values of a point."""
    levels: int
    """Codes of a value: 0 .. levels - 1."""
    reach: int
    """Scales tried on each side of the first."""
    step: float
    """How much 1 / scale changes from one to the next, in parts of the largest value."""
    always: bool = False
    """Points are chosen again at the best scale, whether or not one is off the lattice."""
    all: bool = False
    """If so, all of them, not just those that are off."""


def make_sums(shape: Shape, lanes: int) -> Any:
    """sums(packed, x, w, products, squares): sum of w * x * q and of w * q * q for each of ``lanes`` choices of points.

    packed int32 [size / width, lanes]: the points' values q; products, squares float32 [lanes].
    """
    groups, width = shape.size // shape.width, shape.width

    @small
    def sums(packed, x, w, products, squares):
        for lane in range(lanes):
            products[lane] = ZERO
            squares[lane] = ZERO
        for group in range(groups):
            for i in range(width):
                weight = w[group * width + i]
                weighted = weight * x[group * width + i]
                for lane in range(lanes):
                    q = np.float32(np.int32((packed[group * lanes + lane] >> np.int32(4 * i)) & np.int32(15)))
                    products[lane] += weighted * q
                    squares[lane] += weight * q * q

    return sums


def make_tried(shape: Shape) -> Any:
    """tried(record, x, w, root, scale, largest, points) -> the best of the scales around top / largest, else ``scale``.

    points int32 [size / width] gets the points at this scale, with ``OFF``; the lattice's first if none is better
    than nothing.
    """
    groups, width, reach = shape.size // shape.width, shape.width, shape.reach
    count = 2 * reach + 1
    lanes = -(-count // VECTOR) * VECTOR
    new_chosen, new_packed, new_sums = ints(groups * lanes), ints(groups * lanes), floats(lanes)
    snapped, sums = make_snapped(width, shape.levels), make_sums(shape, lanes)
    step, top = np.float32(shape.step), np.float32(2 * shape.levels - 1)
    none_found = np.int32(OFF if shape.all and not shape.always else 0)

    @small
    def choose(record, x, root, largest, chosen, packed):
        values = ints_at(field(record, PACKED))
        for lane in range(count):
            inverse = (top + np.float32(np.int32(lane - reach)) * step) / largest
            scale = ONE / inverse
            for group in range(groups):
                point = snapped(record, x, root, group * width, inverse, scale)
                chosen[group * lanes + lane] = np.int32(point)
                packed[group * lanes + lane] = values[point & (OFF - 1)]

    @small
    def tried(record, x, w, root, scale, largest, points):
        chosen, packed, products, squares = new_chosen(), new_packed(), new_sums(), new_sums()
        choose(record, x, root, largest, chosen, packed)
        sums(packed, x, w, products, squares)
        best, at = ZERO, -1
        for lane in range(count):
            if squares[lane] > ZERO and products[lane] * products[lane] > best * squares[lane]:
                scale = products[lane] / squares[lane]
                best, at = scale * products[lane], lane
        for group in range(groups):
            points[group] = chosen[group * lanes + at] if at >= 0 else none_found
        return scale

    return tried


def make_refined(shape: Shape) -> Any:
    """refined(record, x, w, root, scale, points) -> a better scale for the points that are nearest at ``scale``.

    The points are chosen again as the format wants it, and lose ``OFF``.
    """
    groups, width = shape.size // shape.width, shape.width
    new_packed, new_sums = ints(groups * VECTOR), floats(VECTOR)
    snapped, sums = make_snapped(width, shape.levels), make_sums(shape, VECTOR)
    always, every = shape.always, shape.all
    point_only = np.int32(OFF - 1)

    @small
    def refined(record, x, w, root, scale, points):
        off = 0
        for group in range(groups):
            off |= points[group] & OFF
        again = scale > ZERO and (always or off != 0)
        for group in range(groups):
            if again and (every or points[group] & OFF != 0):
                points[group] = np.int32(snapped(record, x, root, group * width, ONE / scale, scale))
            points[group] &= point_only
        if again:
            packed, products, squares = new_packed(), new_sums(), new_sums()
            values = ints_at(field(record, PACKED))
            for group in range(groups):
                for lane in range(VECTOR):
                    packed[group * VECTOR + lane] = values[points[group]]
            sums(packed, x, w, products, squares)
            if squares[0] > ZERO:
                scale = products[0] / squares[0]
        return scale

    return refined
