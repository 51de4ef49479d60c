"""Upper bounds of rows of logits from the upper halves of Q8_0 integers, and the copy of a matrix that they are read
from. docs/adr/0013 proves them.

A group of the copy, 16 rows of as many blocks:

    64 bytes            unit of the scales of each row, the upper half of a float32; the rest is nothing
    32 bytes a block    16 sizes of the lower halves of each row, in sixths; 16 scales in units, rounded down
    256 bytes a block   words 0-3 of upper halves, with words 4-7 in the high nibbles, as in ``layout``

the second padded to whole lines. What a row of activations adds to all of them stands in two int32 for each
block: what the middle of the lower halves makes of them, and the factor of the sixths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from kinetic.backends.cpu import dots, layout
from kinetic.backends.cpu.codes import shifted
from kinetic.backends.cpu.functions import REC_D, RECORD
from kinetic.backends.cpu.ir import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Loop,
    Value,
    add_floats,
    fetch,
    fma,
    function,
    i64,
    larger_float,
    like,
    load,
    load_splat,
    loop,
    minimum,
    reduce_tree,
    shuffle,
    splat,
    sqrt,
    store,
    vec,
)
from kinetic.backends.cpu.layout import BLOCKS, GROUP, LINE, NIBBLES
from kinetic.formats import by_type

WHOLE, HALVES = by_type(8, "Q8_0"), by_type(3, "Q4_1")
"""The one format that has such a copy, and one whose integers are codes of 4 bits as they are."""

LIMIT = 8
"""Bytes of what a row of activations adds for one block."""

ENTRY = 2 * GROUP
"""Bytes of sizes and scales of one block."""

UNIT = 1 / 255 * (1 + 2**-20)
"""Of the largest scale: no more than 255 of them, whatever is rounded."""

SIXTHS = 6
"""The root of 32 squares of 7.5 is 42.4: in sixths it fits a byte."""

FACTOR = 256 / SIXTHS

USUAL = 26.0
"""Length of 32 lower halves, counted from the middle, of which all are as likely."""

STEPS = 4
"""To the limit that sizes are cut at: there the gain of one less is what it costs."""

AHEAD = 4608
"""Bytes ahead of those in use that are asked for."""


class Places(NamedTuple):
    """Addresses in a group of the copy."""

    units: Value
    entries: Value
    halves: Value
    end: Value


def emit(module: ir.Module, isa: str) -> None:
    bound_limits(module)
    bound_group(module)
    bound_two(module, isa)


def _lines(b: Builder, size: Value) -> Value:
    return b.and_(b.add(size, i64(LINE - 1)), i64(-LINE))


def places(b: Builder, group: Value, blocks: Value) -> Places:
    entries = b.add(group, i64(LINE))
    halves = b.add(entries, _lines(b, b.mul(blocks, i64(ENTRY))))
    return Places(group, entries, halves, b.add(halves, b.mul(blocks, i64(NIBBLES))))


def bound_limits(module: ir.Module) -> None:
    """bound_limits(records, blocks, out): ``LIMIT`` bytes for each block of one row of activations."""
    b, (records, blocks, out) = function(module, "bound_limits", "aaa")
    with loop(b, blocks) as i:
        q = b.sext(load(b, b.add(records, b.mul(i, i64(RECORD))), 0, vec(I8, 32)), vec(I32, 32))
        total = reduce_tree(b, q, _add)
        clipped, excess = _clipped(b, q)
        squares = _squares(b, clipped)
        # 7.5 times both sums, rounded down, and -128 times one; 2 for what this and the factor's shift round down.
        middle = b.ashr(b.mul(b.add(total, excess), ir.Constant(I32, 15)), ir.Constant(I32, 1))
        base = b.add(b.sub(middle, b.mul(total, ir.Constant(I32, 128))), ir.Constant(I32, 2))
        factor = b.fptosi(b.fmul(sqrt(b, squares), ir.Constant(F32, FACTOR)), I32)
        at = b.add(out, b.mul(i, i64(LIMIT)))
        store(b, base, at)
        store(b, b.add(factor, ir.Constant(I32, 2)), at, 4)
    b.ret_void()


def _clipped(b: Builder, q: Value) -> tuple[Value, Value]:
    """Sizes of elements, cut at a limit, and the sum of what was cut off. Any limit is right; with this one the bound
    is about as low as it can be where the lower halves are as long as USUAL."""
    sizes = b.select(b.icmp_signed("<", q, like(q.type, 0)), b.neg(q), q)
    cut = sizes
    for _ in range(STEPS):
        limit = b.fptosi(b.fmul(sqrt(b, _squares(b, cut)), ir.Constant(F32, 7.5 / USUAL)), I32)
        cut = minimum(b, cut, splat(b, limit, q.type.count))
    return cut, reduce_tree(b, b.sub(sizes, cut), _add)


def _squares(b: Builder, v: Value) -> Value:
    return b.sitofp(reduce_tree(b, b.mul(v, v), _add), F32)


def _add(b: Builder, x: Value, y: Value) -> Value:
    return b.add(x, y)


def bound_group(module: ir.Module) -> None:
    """bound_group(weights, blocks, out) -> 1 if a scale is below 0, else 0: one group of the copy of a Q8_0 matrix."""
    b, (weights, blocks, out) = function(module, "bound_group", "aaa", I64)
    to = places(b, out, blocks)
    ints, floats = vec(I32, GROUP), vec(F32, GROUP)
    body = Loop(b, blocks, [like(floats, 0), like(floats, 0)])
    d, _ = _source(b, weights, body.i)
    high, low = body.values
    is_lower = b.fcmp_ordered("<", d, low)
    best, least = body.end([larger_float(b, high, d), b.select(is_lower, d, low)])
    # Rounded up to 8 bits, so that its products with numbers up to 256 are exact. No less than 2^-40: it is divided by.
    unit = larger_float(b, b.fmul(best, like(floats, UNIT)), like(floats, 2.0**-40))
    bits = b.and_(b.add(b.bitcast(unit, ints), like(ints, 0xFFFF)), like(ints, -0x10000))
    unit = b.bitcast(bits, floats)
    store(b, b.trunc(b.lshr(bits, like(ints, 16)), vec(I16, GROUP)), to.units)
    with loop(b, blocks) as i:
        d, quants = _source(b, weights, i)
        times = b.fptosi(b.fdiv(d, unit), ints)
        # The quotient may have been rounded up to a whole number.
        is_more = b.fcmp_ordered(">", b.fmul(b.sitofp(times, floats), unit), d)
        times = b.sub(times, b.zext(is_more, ints))
        entry = b.add(to.entries, b.mul(i, i64(ENTRY)))
        store(b, b.trunc(times, vec(I8, GROUP)), entry, GROUP)
        raw = [load(b, quants, LINE * j, vec(I8, 4 * GROUP)) for j in range(8)]
        store(b, b.trunc(_sizes(b, raw), vec(I8, GROUP)), entry)
        at = b.add(to.halves, b.mul(i, i64(NIBBLES)))
        for j in range(4):
            low = b.and_(shifted(b, raw[j], -4), like(raw[j].type, 15))
            store(b, b.or_(low, b.and_(raw[4 + j], like(raw[j].type, 240))), at, LINE * j)
    is_less = b.fcmp_ordered("<", least, like(floats, 0))
    b.ret(b.zext(reduce_tree(b, is_less, _or), I64))


def source(b: Builder, weights: Value, i: Value) -> tuple[Value, Value]:
    """Where the scales of block ``i`` are, and its integers: chunks of 8, lines of scales for 2."""
    chunk = b.add(weights, b.mul(b.ashr(i, i64(3)), i64(layout.chunk_bytes(WHOLE, BLOCKS))))
    number, size = b.and_(i, i64(BLOCKS - 1)), layout.quant_bytes(WHOLE)
    line = b.add(chunk, b.mul(b.ashr(number, i64(1)), i64(LINE + 2 * size)))
    odd = b.and_(number, i64(1))
    return b.add(line, b.mul(odd, i64(2 * GROUP))), b.add(b.add(line, i64(LINE)), b.mul(odd, i64(size)))


def _source(b: Builder, weights: Value, i: Value) -> tuple[Value, Value]:
    """Scales as float32, and where the integers are."""
    scales, quants = source(b, weights, i)
    return b.fpext(load(b, scales, 0, vec(F16, GROUP), 16), vec(F32, GROUP)), quants


def _sizes(b: Builder, raw: Sequence[Value]) -> Value:
    """Of each row the length of its lower halves, counted from the middle, in sixths, rounded up."""
    ints, floats = vec(I32, GROUP), vec(F32, GROUP)
    squares = like(ints, 0)
    for word in raw:
        # Twice the distance from the middle, an odd number: its square is at most 225.
        lower = b.zext(b.and_(word, like(word.type, 15)), vec(I32, 4 * GROUP))
        twice = b.sub(b.add(lower, lower), like(lower.type, 15))
        twice = b.mul(twice, twice)
        for k in range(4):
            squares = b.add(squares, shuffle(b, twice, range(k, 4 * GROUP, 4)))
    # Six times half the root is the root of 9 times the sum. A root of a number below 2^16 that is above an integer is
    # so by more than float32 rounds.
    root = sqrt(b, b.sitofp(b.mul(squares, like(ints, 9)), floats))
    whole = b.fptosi(root, ints)
    return b.add(whole, b.zext(b.fcmp_ordered(">", root, b.sitofp(whole, floats)), ints))


def _or(b: Builder, x: Value, y: Value) -> Value:
    return b.or_(x, y)


def bound_two(module: ir.Module, isa: str) -> None:
    """bound_two(group, other, records, limits, blocks, out, other_out): of each of two groups the largest bound, one
    float32. +inf stands for any that is not below it."""
    b, (*groups, records, limits, blocks, first, second) = function(module, "bound_two", "aaaaaaa")
    lanes = dots.LANES[isa]
    floats = vec(F32, lanes)
    parts = range(GROUP // lanes)
    here = [places(b, group, blocks) for group in groups]
    units = [[_unit(b, place, part, lanes) for part in parts] for place in here]
    count = len(groups) * len(parts)
    chunks = Loop(b, b.ashr(b.add(blocks, i64(BLOCKS - 1)), i64(3)), [like(floats, 0)] * count)
    start = b.mul(chunks.i, i64(BLOCKS))
    body = Loop(b, minimum(b, i64(BLOCKS), b.sub(blocks, start)), [like(floats, 0)] * count)
    i = b.add(start, body.i)
    record, limit = b.add(records, b.mul(i, i64(RECORD))), b.add(limits, b.mul(i, i64(LIMIT)))
    sums = []
    for number, place in enumerate(here):
        _fetch_ahead(b, place, i)
        for part in parts:
            before = body.values[number * len(parts) + part]
            sums.append(_block_bound(b, isa, place, i, part, record, limit, units[number][part], before))
    partials = body.end(sums)
    totals = chunks.end([add_floats(b, total, part) for total, part in zip(chunks.values, partials, strict=True)])
    for number, out in enumerate((first, second)):
        best = None
        for total in totals[number * len(parts) : (number + 1) * len(parts)]:
            fine = b.fcmp_ordered("<", total, like(floats, float("inf")))
            kept = b.select(fine, total, like(floats, float("inf")))
            best = kept if best is None else larger_float(b, best, kept)
        store(b, reduce_tree(b, best, larger_float), out)
    b.ret_void()


def _fetch_ahead(b: Builder, place: Places, i: Value) -> None:
    """The group behind this one begins with lines that are read a few at a time."""
    halves = b.add(place.halves, b.mul(i, i64(NIBBLES)))
    for offset in range(0, NIBBLES, LINE):
        fetch(b, b.add(halves, i64(AHEAD + offset)))
    fetch(b, b.add(place.end, b.mul(i, i64(LINE))))


def _block_bound(
    b: Builder, isa: str, place: Places, i: Value, part: int, record: Value, limit: Value, unit: Value, before: Value
) -> Value:
    """``before`` plus one block: the step of docs/NUMERICS.md, with an integer that is no less."""
    lanes = dots.LANES[isa]
    floats, ints = vec(F32, lanes), vec(I32, lanes)
    halves = b.add(place.halves, b.mul(i, i64(NIBBLES)))
    dot = dots.block_dot(b, isa, HALVES, _words(b, halves, part, lanes), record)
    entry = b.add(place.entries, b.mul(i, i64(ENTRY)))
    sizes, times = (b.zext(load(b, entry, at + lanes * part, vec(I8, lanes)), ints) for at in (0, GROUP))
    more = b.ashr(b.mul(sizes, load_splat(b, limit, 4, I32, lanes)), like(ints, 8))
    bound = b.add(b.shl(dot, like(ints, 4)), b.add(more, load_splat(b, limit, 0, I32, lanes)))
    # The scale from above, or from below where that gives more.
    is_up = b.icmp_signed(">=", bound, like(ints, 0))
    scale = b.fmul(b.sitofp(b.add(times, b.zext(is_up, ints)), floats), unit)
    return fma(b, b.sitofp(bound, floats), b.fmul(scale, load_splat(b, record, REC_D, F32, lanes)), before)


def _unit(b: Builder, place: Places, part: int, lanes: int) -> Value:
    ints = vec(I32, lanes)
    upper = b.zext(load(b, place.units, 2 * lanes * part, vec(I16, lanes)), ints)
    return b.bitcast(b.shl(upper, like(ints, 16)), vec(F32, lanes))


def _words(b: Builder, halves: Value, part: int, lanes: int) -> Sequence[Any]:
    """Eight vectors of upper halves, 0 to 15."""
    ty = vec(I8, 4 * lanes)
    raw = [load(b, halves, LINE * j + 4 * lanes * part, ty, 32) for j in range(4)]
    low = [b.and_(v, like(ty, 15)) for v in raw]
    return low + [b.and_(shifted(b, v, -4), like(ty, 15)) for v in raw]
