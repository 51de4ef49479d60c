"""The lattice point nearest to a group of values, for a scale. Imported only by the build process.

A record (``lattice_tables``) is the address of the tables. What is squared and added up is added in the order of
the coordinates; eight neighbours lie in the lanes of a vector, which no sum crosses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types as nt
from numba.extending import intrinsic

from kinetic.backends.cpu.emitted import field, write_i64
from kinetic.backends.cpu.ir import F32, I8, I32, I64, Builder, Loop, Value, i64, like, load, reduce_tree, splat, vec
from kinetic.backends.cpu.quantise.lattice_tables import FIRST, LANES, NAMES, POINT, STATUS, VALUES
from kinetic.backends.cpu.quantise.memory import ints, ints_at, small
from kinetic.backends.cpu.quantise.numbers import HALF, ONE, nearest, within

LARGEST = 3.4028234663852886e38
NOWHERE = 2**31 - 1
OFF = 1 << 16
"""Added to a point that stands for values whose own codes are not on the lattice."""


def _lanes(b: Builder, pointer: Value, at: int) -> Value:
    """The float at ``pointer[at]`` in every lane."""
    return splat(b, b.load(b.gep(pointer, [ir.Constant(I32, at)]), align=4), LANES)


def _nearest_lane(
    b: Builder, width: int, shifted: bool, groups: Value, cells: Value, numbers: tuple[Value, ...]
) -> Value:
    """The place of the neighbour at the least distance, the first of equals; NOWHERE if none is at a finite one."""
    x, w, scale, shift = numbers
    xs, ws = ([_lanes(b, pointer, i) for i in range(width)] for pointer in (x, w))
    scale, shift = splat(b, scale, LANES), splat(b, shift, LANES)
    floats, ints = vec(F32, LANES), vec(I32, LANES)
    lane = ir.Constant(ints, list(range(LANES)))
    body = Loop(b, groups, [like(floats, LARGEST), like(ints, NOWHERE)])
    least, place = body.values
    group = b.add(cells, b.mul(body.i, i64(width * LANES)))
    total = like(floats, 0)
    for i in range(width):
        value = b.sitofp(load(b, group, i * LANES, vec(I8, LANES), 1), floats)
        value = b.fadd(value, shift) if shifted else value
        difference = b.fsub(b.fmul(scale, value), xs[i])
        total = b.fadd(total, b.fmul(b.fmul(ws[i], difference), difference))
    better = b.fcmp_ordered("<", total, least)
    here = b.add(lane, splat(b, b.trunc(b.mul(body.i, i64(LANES)), I32), LANES))
    least, place = body.end([b.select(better, total, least), b.select(better, here, place)])
    return _first_least(b, least, place)


def _first_least(b: Builder, least: Value, place: Value) -> Value:
    """The place of the smallest; the lower place of equals."""
    smallest = reduce_tree(b, least, lambda b, p, q: b.select(b.fcmp_ordered("<", q, p), q, p))
    among = b.select(b.fcmp_ordered("==", least, splat(b, smallest, LANES)), place, like(place.type, NOWHERE))
    return reduce_tree(b, among, lambda b, p, q: b.select(b.icmp_signed("<", q, p), q, p))


def make_nearest(width: int, shifted: bool) -> Any:
    """nearest(groups, cells, x, w, at, scale, shift) -> place of the neighbour q with the least w * (scale * q - x)^2.

    If ``shifted``, ``shift`` is added to q first.
    """

    @intrinsic
    def chosen(typingctx: Any, groups: Any, cells: Any, x: Any, w: Any, at: Any, scale: Any, shift: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            groups, cells, x, w, at, scale, shift = args
            numbers = b.gep(x, [at]), b.gep(w, [at]), scale, shift
            return b.zext(_nearest_lane(b, width, shifted, groups, cells, numbers), I64)

        pointer = nt.CPointer(nt.float32)  # type: ignore[attr-defined]
        return nt.int64(nt.int64, nt.int64, pointer, pointer, nt.int64, nt.float32, nt.float32), codegen

    return chosen


def make_neighbour(width: int, shifted: bool) -> Any:
    """neighbour(record, key, x, w, at, scale, shift) -> the key's neighbour that is nearest to x from ``at`` on.

    If none is at a finite distance: 0, and the record's status is set.
    """
    nearest_place = make_nearest(width, shifted)

    @small
    def neighbour(record, key, x, w, at, scale, shift):
        first = ints_at(field(record, FIRST))
        start = np.int64(first[key])
        cells = field(record, VALUES) + start * (width * LANES)
        place = nearest_place(np.int64(first[key + 1]) - start, cells, x, w, at, scale, shift)
        if place == NOWHERE:
            write_i64(record + 8 * STATUS, 1)
            return np.int64(0)
        return np.int64(ints_at(field(record, NAMES))[start * LANES + place])

    return neighbour


def make_snapped(width: int, levels: int) -> Any:
    """snapped(record, x, w, at, inverse, scale) -> the point nearest to values ``at`` .. of x, for a scale.

    That is the point of their own codes, or the nearest neighbour of these, with ``OFF`` added.
    """
    neighbour = make_neighbour(width, shifted=False)
    highest, new_codes = np.int32(levels - 1), ints(width)

    @small
    def snapped(record, x, w, at, inverse, scale):
        codes, key = new_codes(), np.int32(0)
        for i in range(width):
            codes[i] = within(np.int32(0), nearest(HALF * (inverse * x[at + i] - ONE)), highest)
        for i in range(width):
            key = np.int32(key * np.int32(levels) + codes[width - 1 - i])
        point = np.int64(ints_at(field(record, POINT))[key])
        return point if point >= 0 else neighbour(record, key, x, w, at, scale, ONE) | OFF

    return snapped
