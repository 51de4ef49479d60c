"""Kernels on rows of float32: norm, quantising, activations, rotation, cache stores, tile stores.

Rows are padded to a multiple of 16 elements, so elementwise kernels may run over the padding.
"""

from __future__ import annotations

from llvmlite import ir

from kinetic.backends.cpu.functions import (
    exp,
    load_block,
    quantise_block,
    softcap,
)
from kinetic.backends.cpu.ir import (
    F16,
    F32,
    I1,
    I16,
    I64,
    Builder,
    Loop,
    Value,
    add_floats,
    call,
    f32,
    fma,
    function,
    i64,
    larger_float,
    like,
    load,
    loop,
    minimum,
    reduce_tree,
    shuffle,
    splat,
    sqrt,
    store,
    vec,
)
from kinetic.bits import F16_MAX

LINE = vec(F32, 16)


def emit(module: ir.Module) -> None:
    norm_row(module)
    layer_norm_row(module)
    quantise_row(module)
    add_rows(module)
    scale_row(module)
    softcap_row(module)
    copy_row(module)
    spread_row(module)
    exp_row(module)
    find(module, "find_above", ">")
    find(module, "find_from", ">=")
    scan_row(module)
    rope_row(module)
    store_key(module)
    store_value(module)
    store_tile(module)
    mul_rows(module)
    tap_row(module)
    move_row(module)


def lines(b: Builder, n: Value) -> Value:
    """Vectors of 16 that cover n elements."""
    return b.ashr(b.add(n, i64(15)), i64(4))


def at(b: Builder, base: Value, index: Value, stride: int) -> Value:
    return b.add(base, b.mul(index, i64(stride)))


def load_masked(b: Builder, address: Value, count: Value) -> Value:
    """16 floats of which only the first ``count`` are kept; the others become +0."""
    return b.select(first_lanes(b, count), load(b, address, 0, LINE), like(LINE, 0))


def first_lanes(b: Builder, count: Value) -> Value:
    """True in lanes 0 .. count - 1 of 16."""
    lanes = ir.Constant(vec(I64, 16), list(range(16)))
    return b.icmp_signed("<", lanes, splat(b, count, 16))


def norm_row(module: ir.Module) -> None:
    """norm_row(x, weight, out, n, eps): RMS norm of n elements. ``out`` may be ``x``."""
    b, (x, weight, out, n, eps) = function(module, "norm_row", "aaaaf")
    whole = b.ashr(n, i64(4))
    body = Loop(b, whole, [like(LINE, 0)])
    v = load(b, at(b, x, body.i, 64), 0, LINE)
    (squares,) = body.end([fma(b, v, v, body.values[0])])
    rest = b.sub(n, b.shl(whole, i64(4)))
    body = Loop(b, minimum(b, rest, i64(1)), [squares])
    v = load_masked(b, at(b, x, whole, 64), rest)
    (squares,) = body.end([fma(b, v, v, body.values[0])])
    mean = b.fdiv(reduce_tree(b, squares, add_floats), b.sitofp(n, F32))
    r = b.fdiv(f32(1), sqrt(b, b.fadd(mean, eps)))
    with loop(b, whole) as i:
        scaled = b.fmul(load(b, at(b, x, i, 64), 0, LINE), splat(b, r, 16))
        store(b, b.fmul(scaled, load(b, at(b, weight, i, 64), 0, LINE)), at(b, out, i, 64))
    done = b.shl(whole, i64(4))
    with loop(b, b.sub(n, done)) as i:
        k = b.add(done, i)
        scaled = b.fmul(load(b, at(b, x, k, 4), 0, F32), r)
        store(b, b.fmul(scaled, load(b, at(b, weight, k, 4), 0, F32)), at(b, out, k, 4))
    b.ret_void()


def layer_norm_row(module: ir.Module) -> None:
    """layer_norm_row(x, weight, bias, out, n, eps): layer norm of a row of n elements. ``out`` may be ``x``."""
    b, (x, weight, bias, out, n, eps) = function(module, "layer_norm_row", "aaaaaf")
    count = b.sitofp(n, F32)
    body = Loop(b, lines(b, n), [like(LINE, 0)])
    rest = b.sub(n, b.mul(body.i, i64(16)))
    (sums,) = body.end([b.fadd(body.values[0], load_masked(b, at(b, x, body.i, 64), rest))])
    mean = splat(b, b.fdiv(reduce_tree(b, sums, add_floats), count), 16)
    body = Loop(b, lines(b, n), [like(LINE, 0)])
    inside = first_lanes(b, b.sub(n, b.mul(body.i, i64(16))))
    v = b.select(inside, b.fsub(load(b, at(b, x, body.i, 64), 0, LINE), mean), like(LINE, 0))
    (squares,) = body.end([fma(b, v, v, body.values[0])])
    variance = b.fdiv(reduce_tree(b, squares, add_floats), count)
    r = splat(b, b.fdiv(f32(1), sqrt(b, b.fadd(variance, eps))), 16)
    with loop(b, lines(b, n)) as i:
        v = b.fmul(b.fsub(load(b, at(b, x, i, 64), 0, LINE), mean), r)
        w, shift = (load(b, at(b, base, i, 64), 0, LINE) for base in (weight, bias))
        store(b, fma(b, v, w, shift), at(b, out, i, 64))
    b.ret_void()


def quantise_row(module: ir.Module) -> None:
    """quantise_row(x, records, blocks, stride): records lie ``stride`` bytes apart."""
    b, (x, records, blocks, stride) = function(module, "quantise_row", "aaaa")
    with loop(b, blocks) as i:
        quantise_block(b, load_block(b, at(b, x, i, 128)), b.add(records, b.mul(i, stride)))
    b.ret_void()


def add_rows(module: ir.Module) -> None:
    """add_rows(x, y, out, n)."""
    b, (x, y, out, n) = function(module, "add_rows", "aaaa")
    with loop(b, lines(b, n)) as i:
        total = b.fadd(load(b, at(b, x, i, 64), 0, LINE), load(b, at(b, y, i, 64), 0, LINE))
        store(b, total, at(b, out, i, 64))
    b.ret_void()


def mul_rows(module: ir.Module) -> None:
    """mul_rows(x, y, out, n)."""
    b, (x, y, out, n) = function(module, "mul_rows", "aaaa")
    with loop(b, lines(b, n)) as i:
        product = b.fmul(load(b, at(b, x, i, 64), 0, LINE), load(b, at(b, y, i, 64), 0, LINE))
        store(b, product, at(b, out, i, 64))
    b.ret_void()


def tap_row(module: ir.Module) -> None:
    """tap_row(x, weight, out, n, first): out = fma(x, weight, out), where ``first`` is not 0 from +0."""
    b, (x, weight, out, n, first) = function(module, "tap_row", "aaaaa")
    starts = b.icmp_signed("!=", first, i64(0))
    with loop(b, lines(b, n)) as i:
        y = b.select(starts, like(LINE, 0), load(b, at(b, out, i, 64), 0, LINE))
        y = fma(b, load(b, at(b, x, i, 64), 0, LINE), load(b, at(b, weight, i, 64), 0, LINE), y)
        store(b, y, at(b, out, i, 64))
    b.ret_void()


def move_row(module: ir.Module) -> None:
    """move_row(x, out, n): n elements and not one more."""
    b, (x, out, n) = function(module, "move_row", "aaa")
    whole = b.ashr(n, i64(4))
    with loop(b, whole) as i:
        store(b, load(b, at(b, x, i, 64), 0, LINE), at(b, out, i, 64))
    done = b.shl(whole, i64(4))
    with loop(b, b.sub(n, done)) as i:
        k = b.add(done, i)
        store(b, load(b, at(b, x, k, 4), 0, F32), at(b, out, k, 4))
    b.ret_void()


def scale_row(module: ir.Module) -> None:
    """scale_row(x, out, n, factor)."""
    b, (x, out, n, factor) = function(module, "scale_row", "aaaf")
    with loop(b, lines(b, n)) as i:
        store(b, b.fmul(load(b, at(b, x, i, 64), 0, LINE), splat(b, factor, 16)), at(b, out, i, 64))
    b.ret_void()


def softcap_row(module: ir.Module) -> None:
    """softcap_row(x, out, n, cap)."""
    b, (x, out, n, cap) = function(module, "softcap_row", "aaaf")
    limit = splat(b, cap, 16)
    with loop(b, lines(b, n)) as i:
        store(b, softcap(b, load(b, at(b, x, i, 64), 0, LINE), limit), at(b, out, i, 64))
    b.ret_void()


def copy_row(module: ir.Module) -> None:
    """copy_row(x, out, n): n elements, rounded up to 16; from address 0 it writes zeros."""
    b, (x, out, n) = function(module, "copy_row", "aaa")
    zero = b.icmp_signed("==", x, i64(0))
    with b.if_else(zero) as (then, otherwise):
        with then, loop(b, lines(b, n)) as i:
            store(b, like(LINE, 0), at(b, out, i, 64))
        with otherwise, loop(b, lines(b, n)) as i:
            store(b, load(b, at(b, x, i, 64), 0, LINE), at(b, out, i, 64))
    b.ret_void()


def spread_row(module: ir.Module) -> None:
    """spread_row(x, out, n, stride): n elements, written ``stride`` bytes apart."""
    b, (x, out, n, stride) = function(module, "spread_row", "aaaa")
    with loop(b, n) as i:
        store(b, load(b, at(b, x, i, 4), 0, F32), b.add(out, b.mul(i, stride)))
    b.ret_void()


def exp_row(module: ir.Module) -> None:
    """exp_row(x, out, n)."""
    b, (x, out, n) = function(module, "exp_row", "aaa")
    with loop(b, lines(b, n)) as i:
        store(b, exp(b, load(b, at(b, x, i, 64), 0, LINE)), at(b, out, i, 64))
    b.ret_void()


def scan_row(module: ir.Module) -> None:
    """scan_row(x, n, out): out[0] the largest of n float32 (NaN aside), out[1] 1.0 if any is NaN or +inf else 0.0."""
    b, (x, n, out) = function(module, "scan_row", "aaa")
    nothing = like(LINE, float("-inf"))
    body = Loop(b, lines(b, n), [nothing, ir.Constant(vec(I1, 16), [False] * 16)])
    keep = first_lanes(b, b.sub(n, b.mul(body.i, i64(16))))
    v = b.select(keep, load(b, at(b, x, body.i, 64), 0, LINE), nothing)
    fine = b.fcmp_ordered("<", v, like(LINE, float("inf")))
    best, bad = body.end([larger_float(b, body.values[0], v), b.or_(body.values[1], b.not_(fine))])
    store(b, reduce_tree(b, best, larger_float), out, 0)
    any_bad = reduce_tree(b, bad, lambda b, x, y: b.or_(x, y))
    store(b, b.select(any_bad, f32(1), f32(0)), out, 4)
    b.ret_void()


def find(module: ir.Module, name: str, comparison: str) -> None:
    """find_*(x, start, n, limit) -> the first index >= start whose x[i] is > (or >=) limit, else n.

    x is padded to a multiple of 16.
    """
    b, (x, start, n, limit) = function(module, name, "aaaf", I64)
    threshold = splat(b, limit, 16)
    tile = b.ashr(start, i64(4))
    head, body, found, advance, nothing = (b.append_basic_block(s) for s in ("head", "body", "hit", "next", "none"))
    entry = b.block
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(tile, entry)
    b.cbranch(b.icmp_signed("<", b.shl(i, i64(4)), n), body, nothing)
    b.position_at_end(body)
    base = b.shl(i, i64(4))
    lanes = ir.Constant(vec(I64, 16), list(range(16)))
    index = b.add(splat(b, base, 16), lanes)
    inside = b.and_(b.icmp_signed(">=", index, splat(b, start, 16)), b.icmp_signed("<", index, splat(b, n, 16)))
    hits = b.and_(inside, b.fcmp_ordered(comparison, load(b, at(b, x, i, 64), 0, LINE), threshold))
    mask = b.bitcast(hits, I16)
    b.cbranch(b.icmp_signed("!=", mask, ir.Constant(I16, 0)), found, advance)
    b.position_at_end(advance)
    i.add_incoming(b.add(i, i64(1)), advance)
    b.branch(head)
    b.position_at_end(found)
    lane = call(b, "llvm.cttz.i16", I16, [mask, ir.Constant(I1, 1)])
    b.ret(b.add(base, b.zext(lane, I64)))
    b.position_at_end(nothing)
    b.ret(n)


def rope_row(module: ir.Module) -> None:
    """rope_row(x, table, half, interleaved): in place; table is cos [half] then sin [half]."""
    b, (x, table, half, interleaved) = function(module, "rope_row", "aaaa")
    paired = b.icmp_signed("!=", interleaved, i64(0))
    step = b.select(paired, i64(8), i64(4))
    apart = b.select(paired, i64(4), b.mul(half, i64(4)))
    whole = b.ashr(half, i64(4))
    with b.if_else(paired) as (then, otherwise):
        with then, loop(b, whole) as i:
            _rotate_pairs(b, at(b, x, i, 128), at(b, table, i, 64), half)
        with otherwise, loop(b, whole) as i:
            _rotate_halves(b, at(b, x, i, 64), at(b, table, i, 64), half)
    done = b.shl(whole, i64(4))
    with loop(b, b.sub(half, done)) as i:
        k = b.add(done, i)
        here = b.add(x, b.mul(k, step))
        there = b.add(here, apart)
        cos, sin = _cos_sin(b, at(b, table, k, 4), half, F32)
        e, o = load(b, here, 0, F32), load(b, there, 0, F32)
        store(b, fma(b, e, cos, b.fneg(b.fmul(o, sin))), here)
        store(b, fma(b, e, sin, b.fmul(o, cos)), there)
    b.ret_void()


def _cos_sin(b: Builder, table: Value, half: Value, ty: Value) -> tuple[Value, Value]:
    return load(b, table, 0, ty), load(b, at(b, table, half, 4), 0, ty)


def _rotate_halves(b: Builder, x: Value, table: Value, half: Value) -> None:
    cos, sin = _cos_sin(b, table, half, LINE)
    there = at(b, x, half, 4)
    e, o = load(b, x, 0, LINE), load(b, there, 0, LINE)
    store(b, fma(b, e, cos, b.fneg(b.fmul(o, sin))), x)
    store(b, fma(b, e, sin, b.fmul(o, cos)), there)


def _rotate_pairs(b: Builder, x: Value, table: Value, half: Value) -> None:
    cos, sin = _cos_sin(b, table, half, LINE)
    v = load_block(b, x)
    e, o = shuffle(b, v, range(0, 32, 2)), shuffle(b, v, range(1, 32, 2))
    new_e = fma(b, e, cos, b.fneg(b.fmul(o, sin)))
    new_o = fma(b, e, sin, b.fmul(o, cos))
    store(b, shuffle(b, new_e, [k // 2 + 16 * (k % 2) for k in range(32)], new_o), x)


def _clamped_half(b: Builder, v: Value) -> Value:
    """float16, clamped to +-65504 first; a NaN stays one."""
    ty = v.type
    high, low = like(ty, float(F16_MAX)), like(ty, -float(F16_MAX))
    v = b.select(b.fcmp_ordered(">", v, high), high, v)
    v = b.select(b.fcmp_ordered("<", v, low), low, v)
    return b.fptrunc(v, vec(F16, ty.count) if hasattr(ty, "count") else F16)


def store_key(module: ir.Module) -> None:
    """store_key(x, out, n): element i goes to byte 32 i: 16 keys lie side by side."""
    b, (x, out, n) = function(module, "store_key", "aaa")
    with loop(b, n) as i:
        store(b, _clamped_half(b, load(b, at(b, x, i, 4), 0, F32)), at(b, out, i, 32), 0, 2)
    b.ret_void()


def store_value(module: ir.Module) -> None:
    """store_value(x, out, n): n float16 in a row."""
    b, (x, out, n) = function(module, "store_value", "aaa")
    whole = b.ashr(n, i64(4))
    with loop(b, whole) as i:
        store(b, _clamped_half(b, load(b, at(b, x, i, 64), 0, LINE)), at(b, out, i, 32), 0, 2)
    done = b.shl(whole, i64(4))
    with loop(b, b.sub(n, done)) as i:
        k = b.add(done, i)
        store(b, _clamped_half(b, load(b, at(b, x, k, 4), 0, F32)), at(b, out, k, 2), 0, 2)
    b.ret_void()


def store_tile(module: ir.Module) -> None:
    """store_tile(tile, rows, out, stride, bias, residual): 16 columns to ``out``, rows ``stride`` bytes apart.

    Adds ``bias`` [16] first and then ``residual`` (laid out like ``out``), each unless its address is 0.
    """
    b, (tile, rows, out, stride, bias, residual) = function(module, "store_tile", "aaaaaa")
    with loop(b, rows) as t:
        here = b.mul(t, stride)
        v = load(b, at(b, tile, t, 64), 0, LINE)
        v = _plus(b, v, bias, bias)
        v = _plus(b, v, residual, b.add(residual, here))
        store(b, v, b.add(out, here))
    b.ret_void()


def _plus(b: Builder, v: Value, flag: Value, address: Value) -> Value:
    """``v`` plus the line at ``address``, unless ``flag`` is 0."""
    before = b.block
    with b.if_then(b.icmp_signed("!=", flag, i64(0))):
        total = b.fadd(load(b, address, 0, LINE), v)
        inside = b.block
    merged = b.phi(v.type)
    merged.add_incoming(v, before)
    merged.add_incoming(total, inside)
    return merged
