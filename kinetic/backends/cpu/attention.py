"""Kernels of attention over one chunk of 256 keys. The order of every sum is that of ``reference.attention``.

A page holds 256 positions of one sequence, in float16. Keys lie [tile of 16 keys][head width][16], values
[key][padded head width].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llvmlite import ir

from kinetic.backends.cpu.functions import exp_or_zero
from kinetic.backends.cpu.ir import (
    F16,
    F32,
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
    splat,
    store,
    vec,
)
from kinetic.backends.cpu.rows import LINE, at

ROWS_AT_ONCE = (8, 4, 3, 2, 1)
"""Query rows that share the loads of keys and values. ``core_attention`` chooses among them."""

WIDE = ("vnni512", "vnni256")
"""Instruction sets with 32 registers. Half as many can't hold the sums of 8 rows."""

SCORE_ROW = 1024
"""Bytes of one row of scores: 256 float32."""


def emit(module: ir.Module, isa: str) -> None:
    for rows in ROWS_AT_ONCE:
        scores(module, rows, _together(isa, rows, {8: (2,), 4: (4,), 3: (4,), 2: (4,), 1: (4,)}))
        weighted_values(module, rows, _together(isa, rows, {8: (2,), 4: (4,), 3: (8, 4), 2: (8, 4), 1: (8, 4)}))
    softmax_row(module)
    merge_row(module)
    divide_row(module)


def _together(isa: str, rows: int, wide: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Tiles of keys, or strips of values, that are taken beside each other: as many as fit, then fewer."""
    return (*wide[rows], 1) if isa in WIDE else (max(1, 4 // rows), 1)


def scores(module: ir.Module, rows: int, sizes: Sequence[int]) -> None:
    """scores_R(q, q stride, keys, width, tiles, out): q . k for R rows and all keys of ``tiles`` tiles."""
    b, (q, stride, keys, width, tiles, out) = function(module, f"scores_{rows}", "aaaaaa")
    for first, size in _in_sizes(b, tiles, sizes):
        _score_tiles(b, rows, size, q, stride, keys, width, first, out)
    b.ret_void()


def _in_sizes(b: Builder, count: Value, sizes: Sequence[int]) -> Iterator[tuple[Value, int]]:
    """A loop for each size, over as many pieces of it as are left: (first index, size)."""
    done: Value = i64(0)
    for size in sizes:
        many = b.sdiv(b.sub(count, done), i64(size))
        with loop(b, many) as i:
            yield b.add(done, b.mul(i, i64(size))), size
        done = b.add(done, b.mul(many, i64(size)))


def _score_tiles(
    b: Builder, rows: int, tiles: int, q: Value, stride: Value, keys: Value, width: Value, first: Value, out: Value
) -> None:
    tile_bytes = b.mul(width, i64(32))
    start = b.add(keys, b.mul(first, tile_bytes))
    body = Loop(b, width, [like(LINE, 0)] * (rows * tiles) + [start, q])
    place, column = body.values[rows * tiles :]
    k = [b.fpext(load(b, b.add(place, b.mul(tile_bytes, i64(j))), 0, vec(F16, 16), 32), LINE) for j in range(tiles)]
    if rows <= 4:  # few rows: memory decides
        for j in range(tiles):
            fetch(b, b.add(place, b.mul(tile_bytes, i64(j + tiles))))
    sums = []
    for r in range(rows):
        value = load_splat(b, b.add(column, b.mul(stride, i64(r))), 0, F32, 16)
        sums += [fma(b, value, k[j], body.values[r * tiles + j]) for j in range(tiles)]
    after = body.end([*sums, b.add(place, i64(32)), b.add(column, i64(4))])
    here = at(b, out, first, 64)
    for r in range(rows):
        for j in range(tiles):
            store(b, after[r * tiles + j], here, SCORE_ROW * r + 64 * j)


def softmax_row(module: ir.Module) -> None:
    """softmax_row(scores, low, high, out): weights of keys low .. high - 1 in place; out gets maximum and sum.

    Lanes outside the range become 0 by selection: whatever stands there, even a NaN, has no effect.
    """
    b, (line, low, high, out) = function(module, "softmax_row", "aaaa")
    segments = _segments(b, low, high)
    best: Value = like(LINE, float("-inf"))
    for first, count, whole in segments:
        body = Loop(b, count, [best])
        tile = b.add(first, body.i)
        v = load(b, at(b, line, tile, 64), 0, LINE)
        if not whole:
            v = b.select(_visible(b, tile, low, high), v, like(LINE, float("-inf")))
        (best,) = body.end([larger_float(b, body.values[0], v)])
    maximum = reduce_tree(b, best, larger_float)
    sums: Value = like(LINE, 0)
    for first, count, whole in segments:
        body = Loop(b, count, [sums])
        tile = b.add(first, body.i)
        here = at(b, line, tile, 64)
        weights = exp_or_zero(b, b.fsub(load(b, here, 0, LINE), splat(b, maximum, 16)))
        if not whole:
            weights = b.select(_visible(b, tile, low, high), weights, like(LINE, 0))
        store(b, weights, here)
        (sums,) = body.end([b.fadd(body.values[0], weights)])
    store(b, maximum, out, 0)
    store(b, reduce_tree(b, sums, add_floats), out, 4)
    b.ret_void()


def _segments(b: Builder, low: Value, high: Value) -> list[tuple[Value, Value, bool]]:
    """(first tile, tiles, whether all keys of each are seen): of a range of keys the start, the middle and the end."""
    first = b.ashr(low, i64(4))
    n = b.sub(b.ashr(b.add(high, i64(15)), i64(4)), first)
    lead = minimum(b, n, b.zext(b.icmp_signed("!=", b.and_(low, i64(15)), i64(0)), I64))
    start = b.add(first, lead)
    whole = b.sub(b.ashr(high, i64(4)), start)
    whole = b.select(b.icmp_signed("<", whole, i64(0)), i64(0), whole)
    return [(first, lead, False), (start, whole, True), (b.add(start, whole), b.sub(b.sub(n, lead), whole), False)]


def _visible(b: Builder, tile: Value, low: Value, high: Value) -> Value:
    """Which of the 16 keys of ``tile`` lie in low .. high - 1."""
    lanes = ir.Constant(vec(I64, 16), list(range(16)))
    index = b.add(splat(b, b.shl(tile, i64(4)), 16), lanes)
    return b.and_(b.icmp_signed(">=", index, splat(b, low, 16)), b.icmp_signed("<", index, splat(b, high, 16)))


def weighted_values(module: ir.Module, rows: int, sizes: Sequence[int]) -> None:
    """weighted_values_R(weights, values, width, first, count, out): adds keys first .. first + count - 1 to out.

    ``out`` rows lie ``width`` floats apart (a multiple of 16); keys come one after another.
    """
    b, (weights, values, width, first, count, out) = function(module, f"weighted_values_{rows}", "aaaaaa")
    for strip, size in _in_sizes(b, b.ashr(width, i64(4)), sizes):
        _value_strips(b, rows, size, weights, values, width, first, count, out, strip)
    b.ret_void()


def _value_strips(
    b: Builder,
    rows: int,
    strips: int,
    weights: Value,
    values: Value,
    width: Value,
    first: Value,
    count: Value,
    out: Value,
    strip: Value,
) -> None:
    row_bytes = b.mul(width, i64(2))
    places = [b.add(at(b, out, strip, 64), b.mul(width, i64(4 * r))) for r in range(rows)]
    before = [load(b, place, 64 * j, LINE) for place in places for j in range(strips)]
    start_v = b.add(at(b, values, strip, 32), b.mul(first, row_bytes))
    body = Loop(b, count, [*before, start_v, at(b, weights, first, 4)])
    v_at, w_at = body.values[rows * strips :]
    v = [b.fpext(load(b, v_at, 32 * j, vec(F16, 16), 32), LINE) for j in range(strips)]
    sums = []
    for r in range(rows):
        weight = load_splat(b, w_at, SCORE_ROW * r, F32, 16)
        sums += [fma(b, weight, v[j], body.values[r * strips + j]) for j in range(strips)]
    after = body.end([*sums, b.add(v_at, row_bytes), b.add(w_at, i64(4))])
    for r in range(rows):
        for j in range(strips):
            store(b, after[r * strips + j], places[r], 64 * j)


def merge_row(module: ir.Module) -> None:
    """merge_row(state, sums, chunk, chunk sums, n): online softmax of two parts, the result in the first.

    ``state`` and ``chunk`` are float32 [n]; ``sums`` hold maximum and total.
    """
    b, (state, sums, chunk, chunk_sums, n) = function(module, "merge_row", "aaaaa")
    m0, l0 = load(b, sums, 0, F32), load(b, sums, 4, F32)
    m1, l1 = load(b, chunk_sums, 0, F32), load(b, chunk_sums, 4, F32)
    maximum = larger_float(b, m0, m1)
    f0, f1 = exp_or_zero(b, b.fsub(m0, maximum)), exp_or_zero(b, b.fsub(m1, maximum))
    store(b, maximum, sums, 0)
    store(b, fma(b, l0, f0, b.fmul(l1, f1)), sums, 4)
    with loop(b, b.ashr(n, i64(4))) as i:
        here = at(b, state, i, 64)
        new = b.fmul(load(b, at(b, chunk, i, 64), 0, LINE), splat(b, f1, 16))
        store(b, fma(b, load(b, here, 0, LINE), splat(b, f0, 16), new), here)
    b.ret_void()


def divide_row(module: ir.Module) -> None:
    """divide_row(x, sums, out, n): n floats divided by the total of ``sums``; writes exactly n."""
    b, (x, sums, out, n) = function(module, "divide_row", "aaaa")
    total = load(b, sums, 4, F32)
    whole = b.ashr(n, i64(4))
    with loop(b, whole) as i:
        store(b, b.fdiv(load(b, at(b, x, i, 64), 0, LINE), splat(b, total, 16)), at(b, out, i, 64))
    done = b.shl(whole, i64(4))
    with loop(b, b.sub(n, done)) as i:
        k = b.add(done, i)
        store(b, b.fdiv(load(b, at(b, x, k, 4), 0, F32), total), at(b, out, k, 4))
    b.ret_void()
