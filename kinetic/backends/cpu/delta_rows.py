"""Kernels of gated DeltaNet on one row of one head. The order of every sum is that of ``reference.delta``."""

from __future__ import annotations

from llvmlite import ir

from kinetic.backends.base import DELTA_COLUMNS
from kinetic.backends.cpu.attention import WIDE
from kinetic.backends.cpu.functions import as_int, exp, softplus
from kinetic.backends.cpu.ir import (
    F32,
    Builder,
    Loop,
    Value,
    add_floats,
    f32,
    fma,
    function,
    i64,
    like,
    load,
    load_splat,
    loop,
    reduce_tree,
    splat,
    sqrt,
    store,
)
from kinetic.backends.cpu.rows import LINE, at
from kinetic.backends.reference.functions import SMALLEST_STATE

PARTIALS = 4


def emit(module: ir.Module, isa: str) -> None:
    l2_row(module)
    decay_row(module)
    for groups in (1, 2):
        delta_row(module, groups, together=groups if isa in WIDE else 1)


def l2_row(module: ir.Module) -> None:
    """l2_row(x, out, n, eps, factor): n elements, a multiple of 16. ``out`` may be ``x``."""
    b, (x, out, n, eps, factor) = function(module, "l2_row", "aaaff")
    lines = b.ashr(n, i64(4))
    body = Loop(b, lines, [like(LINE, 0)])
    v = load(b, at(b, x, body.i, 64), 0, LINE)
    (squares,) = body.end([fma(b, v, v, body.values[0])])
    r = b.fdiv(f32(1), sqrt(b, b.fadd(reduce_tree(b, squares, add_floats), eps)))
    with loop(b, lines) as i:
        normed = b.fmul(load(b, at(b, x, i, 64), 0, LINE), splat(b, r, 16))
        store(b, b.fmul(normed, splat(b, factor, 16)), at(b, out, i, 64))
    b.ret_void()


def decay_row(module: ir.Module) -> None:
    """decay_row(gate, a, bias, out, n): exp(a * softplus(gate + bias)), rounded up to 16 elements."""
    b, (gate, a, bias, out, n) = function(module, "decay_row", "aaaaa")
    with loop(b, b.ashr(b.add(n, i64(15)), i64(4))) as i:
        g, factor, offset = (load(b, at(b, place, i, 64), 0, LINE) for place in (gate, a, bias))
        store(b, exp(b, b.fmul(factor, softplus(b, b.fadd(g, offset)))), at(b, out, i, 64))
    b.ret_void()


def delta_row(module: ir.Module, groups: int, together: int) -> None:
    """delta_row_G(state, q, k, v, out, width, kept, learned): G groups of 16 value elements, one after another in the
    state, of which ``together`` are computed beside each other: as many as there are registers for."""
    b, (state, q, k, v, out, width, kept, learned) = function(module, f"delta_row_{groups}", "aaaaaaff")
    size = b.mul(width, i64(4 * DELTA_COLUMNS))
    share, new = splat(b, kept, DELTA_COLUMNS), splat(b, learned, DELTA_COLUMNS)
    for first in range(0, groups, together):
        places = [b.add(state, b.mul(size, i64(first + g))) for g in range(together)]
        known = _answers(b, places, k, width, share)
        news = [b.fmul(b.fsub(load(b, v, 64 * (first + g), LINE), known[g]), new) for g in range(together)]
        for g, total in enumerate(_update(b, places, q, k, width, share, news)):
            store(b, total, out, 64 * (first + g))
    b.ret_void()


def _four(b: Builder, width: Value, places: list[Value], vectors: list[Value]) -> tuple[Loop, list[Value], list[Value]]:
    """A loop over four key elements at a time that carries PARTIALS sums for each place, then where everything is."""
    sums: list[Value] = [like(LINE, 0)] * (PARTIALS * len(places))
    body = Loop(b, b.ashr(width, i64(2)), [*sums, *places, *vectors])
    rest = body.values[len(sums) :]
    return body, rest[: len(places)], rest[len(places) :]


def _end(b: Builder, body: Loop, sums: list[Value], places: list[Value], vectors: list[Value]) -> list[Value]:
    moved = [b.add(place, i64(4 * PARTIALS * DELTA_COLUMNS)) for place in places]
    after = body.end([*sums, *moved, *(b.add(vector, i64(4 * PARTIALS)) for vector in vectors)])
    groups = [after[PARTIALS * g : PARTIALS * (g + 1)] for g in range(len(places))]
    return [b.fadd(b.fadd(p[0], p[2]), b.fadd(p[1], p[3])) for p in groups]


def _answers(b: Builder, places: list[Value], k: Value, width: Value, share: Value) -> list[Value]:
    """What is left of the state, times k."""
    body, here, (key,) = _four(b, width, places, [k])
    sums = list(body.values[: PARTIALS * len(places)])
    for n in range(PARTIALS):
        weight = load_splat(b, key, 4 * n, F32, DELTA_COLUMNS)
        for g, place in enumerate(here):
            left = b.fmul(load(b, place, 64 * n, LINE), share)
            sums[PARTIALS * g + n] = fma(b, left, weight, sums[PARTIALS * g + n])
    return _end(b, body, sums, here, [key])


def _update(
    b: Builder, places: list[Value], q: Value, k: Value, width: Value, share: Value, news: list[Value]
) -> list[Value]:
    """The state takes in the news under k; then it times q."""
    body, here, (query, key) = _four(b, width, places, [q, k])
    sums = list(body.values[: PARTIALS * len(places)])
    for n in range(PARTIALS):
        weight = load_splat(b, key, 4 * n, F32, DELTA_COLUMNS)
        asked = load_splat(b, query, 4 * n, F32, DELTA_COLUMNS)
        for g, place in enumerate(here):
            left = b.fmul(load(b, place, 64 * n, LINE), share)
            state = _without_specks(b, fma(b, weight, news[g], left))
            store(b, state, place, 64 * n)
            sums[PARTIALS * g + n] = fma(b, state, asked, sums[PARTIALS * g + n])
    return _end(b, body, sums, here, [query, key])


def _without_specks(b: Builder, x: Value) -> Value:
    ints = as_int(x.type)
    magnitude = b.bitcast(b.and_(b.bitcast(x, ints), like(ints, 0x7FFFFFFF)), x.type)
    return b.select(b.fcmp_ordered("<", magnitude, like(x.type, SMALLEST_STATE)), like(x.type, 0), x)
