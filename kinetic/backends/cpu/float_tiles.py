"""Tile kernels of float formats: the three of ``tiles``, with x float32 [column][row].

Chunks of 256 columns: their sums stay in registers, and the weights are converted once for all rows.
"""

from __future__ import annotations

from llvmlite import ir

from kinetic.backends.base import CHUNK
from kinetic.backends.cpu.ir import (
    F16,
    F32,
    I16,
    I32,
    Builder,
    Loop,
    Value,
    fma,
    function,
    i64,
    like,
    load,
    load_splat,
    loop,
    minimum,
    store,
    vec,
)
from kinetic.backends.cpu.layout import GROUP, TILE
from kinetic.backends.cpu.tiles import MANY, ONE, ROW, SECOND, TWO, tile_name, zero_groups, zero_rows
from kinetic.formats import Format

FLOATS = vec(F32, GROUP)


def emit(module: ir.Module, fmt: Format) -> None:
    """The three kernels of a float format."""
    _row(module, fmt, ONE)
    _row(module, fmt, TWO)
    _many(module, fmt)


def _row(module: ir.Module, fmt: Format, kind: str) -> None:
    """One row with one or two groups of weights."""
    b, (*weights, x, width, out) = function(module, tile_name(fmt, kind), "aaaa" if kind == ONE else "aaaaa")
    zero_groups(b, out, len(weights))
    chunks = Loop(b, _chunks(b, width), [*weights, x])
    *places, column = chunks.values
    n = _columns_of(b, width, chunks.i)
    _chunk(b, fmt, places, column, n, 1, i64(4), out)
    size = b.mul(n, i64(GROUP * fmt.BYTES))
    chunks.end([*(b.add(place, size) for place in places), b.add(column, b.mul(n, i64(4)))])
    b.ret_void()


def _many(module: ir.Module, fmt: Format) -> None:
    """A whole tile at once; of fewer rows four at a time, then one."""
    b, (weights, x, width, out, rows) = function(module, tile_name(fmt, MANY), "aaaaa")
    zero_rows(b, out, rows)
    stride = b.mul(rows, i64(4))
    chunks = Loop(b, _chunks(b, width), [weights, x])
    w, column = chunks.values
    n = _columns_of(b, width, chunks.i)
    done: Value = i64(0)
    for step in (TILE, 4, 1):
        many = b.udiv(b.sub(rows, done), i64(step))
        with loop(b, many) as i:
            first = b.add(done, b.mul(i, i64(step)))
            here = b.add(column, b.mul(first, i64(4)))
            _chunk(b, fmt, [w], here, n, step, stride, b.add(out, b.mul(first, i64(ROW))))
        done = b.add(done, b.mul(many, i64(step)))
    chunks.end([b.add(w, b.mul(n, i64(GROUP * fmt.BYTES))), b.add(column, b.mul(n, stride))])
    b.ret_void()


def _chunks(b: Builder, width: Value) -> Value:
    return b.ashr(b.add(width, i64(CHUNK - 1)), i64(8))


def _columns_of(b: Builder, width: Value, chunk: Value) -> Value:
    return minimum(b, i64(CHUNK), b.sub(width, b.mul(chunk, i64(CHUNK))))


def _chunk(
    b: Builder, fmt: Format, weights: list[Value], x: Value, n: Value, rows: int, stride: Value, out: Value
) -> None:
    """Adds n columns to ``out``: of one group of weights for ``rows`` rows, or of several groups for one row.
    Columns of x lie ``stride`` bytes apart."""
    body = Loop(b, n, [like(FLOATS, 0)] * (rows * len(weights)) + [*weights, x])
    *sums, column = body.values
    places = sums[rows * len(weights) :]
    after: list[Value] = []
    for place in places:
        value = _weights(b, fmt, place)
        for row in range(rows):
            after.append(fma(b, value, load_splat(b, column, 4 * row, F32, GROUP), body.values[len(after)]))
    moved = [b.add(place, i64(GROUP * fmt.BYTES)) for place in places]
    partial = body.end([*after, *moved, b.add(column, stride)])
    apart = SECOND if len(weights) > 1 else ROW
    for number, value in enumerate(partial[: len(after)]):
        store(b, b.fadd(load(b, out, apart * number, FLOATS, 16), value), out, apart * number, 16)


def _weights(b: Builder, fmt: Format, address: Value) -> Value:
    if fmt.NAME == "F32":
        return load(b, address, 0, FLOATS, 32)
    if fmt.NAME == "F16":
        return b.fpext(load(b, address, 0, vec(F16, GROUP), 32), FLOATS)
    wide = b.zext(load(b, address, 0, vec(I16, GROUP), 32), vec(I32, GROUP))
    return b.bitcast(b.shl(wide, like(wide.type, 16)), FLOATS)
