"""Kernels of the selective scan (Mamba-2), operation for operation those of ``reference.scan``.

A vector is 16 elements of one head. Of a state [size, 16] each token passes over all vectors in order, so the four
partial sums of its product with C are four vectors.
"""

from __future__ import annotations

from llvmlite import ir

from kinetic.backends.cpu.functions import exp, softplus
from kinetic.backends.cpu.ir import (
    F32,
    I32,
    I64,
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
    store,
    vec,
)
from kinetic.backends.cpu.rows import LINE, at, load_masked
from kinetic.backends.reference.functions import SMALLEST_STATE
from kinetic.backends.reference.scan import PARTIALS


def emit(module: ir.Module) -> None:
    scan_steps(module)
    scan_block(module)


def scan_steps(module: ir.Module) -> None:
    """scan_steps(dt, stride, order, rows, bias, a, out): of one head, how far each row moves on, and how much is left
    of the state then: two floats a row. ``order`` int64 [rows] says where rows lie; ``bias`` and ``a`` are addresses.
    """
    b, (dt, stride, order, rows, bias, a, out) = function(module, "scan_steps", "a" * 7)
    with loop(b, rows) as t:
        raw = load(b, _row(b, dt, stride, order, t), 0, F32)
        step = softplus(b, b.fadd(raw, load(b, bias, 0, F32)))
        here = at(b, out, t, 8)
        store(b, step, here)
        store(b, exp(b, b.fmul(step, load(b, a, 0, F32))), here, 4)
    b.ret_void()


def scan_block(module: ir.Module) -> None:
    """scan_block(x, to_b, to_c, x_stride, order, rows, steps, state, size, d, out, out_stride, count).

    ``count`` elements (at most 16) of one head, over ``rows`` tokens that lie where ``order`` says. B and C of a row
    begin ``to_b`` and ``to_c`` bytes behind x; ``steps`` as ``scan_steps`` left them; ``d`` is an address.
    """
    b, args = function(module, "scan_block", "a" * 13)
    x, to_b, to_c, x_stride, order, rows, steps, state, size, d, out, out_stride, count = args
    d_lanes = load_splat(b, d, 0, F32, 16)
    with loop(b, rows) as t:
        row = _row(b, x, x_stride, order, t)
        v = load_masked(b, row, count)
        step = load_splat(b, at(b, steps, t, 8), 0, F32, 16)
        decay = load_splat(b, at(b, steps, t, 8), 4, F32, 16)
        y = _token(b, b.fmul(v, step), decay, state, b.add(row, to_b), b.add(row, to_c), size)
        _store_first(b, fma(b, v, d_lanes, y), _row(b, out, out_stride, order, t), count)
    b.ret_void()


def _row(b: Builder, base: Value, stride: Value, order: Value, t: Value) -> Value:
    """Where the t-th of the rows in ``order`` lies."""
    return b.add(base, b.mul(load(b, at(b, order, t, 8), 0, I64, 8), stride))


def _token(b: Builder, v: Value, decay: Value, state: Value, to_b: Value, to_c: Value, size: Value) -> Value:
    """The new state, and its product with C. ``v`` is x times the step."""
    body = Loop(b, b.sdiv(size, i64(PARTIALS)), [like(LINE, 0)] * PARTIALS)
    partials = []
    for k in range(PARTIALS):
        here = b.add(state, b.mul(body.i, i64(64 * PARTIALS)))
        scalars = at(b, to_b, body.i, 4 * PARTIALS), at(b, to_c, body.i, 4 * PARTIALS)
        b_lanes, c_lanes = (load_splat(b, address, 4 * k, F32, 16) for address in scalars)
        new = fma(b, load(b, here, 64 * k, LINE), decay, b.fmul(v, b_lanes))
        new = b.select(b.fcmp_ordered("<", _magnitude(b, new), like(LINE, SMALLEST_STATE)), like(LINE, 0), new)
        store(b, new, here, 64 * k)
        partials.append(fma(b, new, c_lanes, body.values[k]))
    first, second, third, fourth = body.end(partials)
    return b.fadd(b.fadd(first, third), b.fadd(second, fourth))


def _magnitude(b: Builder, v: Value) -> Value:
    ints = vec(I32, v.type.count)
    return b.bitcast(b.and_(b.bitcast(v, ints), like(ints, 0x7FFFFFFF)), v.type)


def _store_first(b: Builder, v: Value, address: Value, count: Value) -> None:
    """The first ``count`` of 16 elements: what lies behind them may be another thread's."""
    with b.if_else(b.icmp_signed("==", count, i64(16))) as (whole, part):
        with whole:
            store(b, v, address)
        with part, loop(b, count) as i:
            store(b, b.extract_element(v, b.trunc(i, I32)), at(b, address, i, 4))
