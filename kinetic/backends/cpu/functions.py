"""exp, SiLU, GELU and activation quantising as IR, operation for operation those of ``reference.functions``."""

from __future__ import annotations

from kinetic.backends.cpu.ir import (
    F32,
    I8,
    I32,
    Builder,
    Value,
    call,
    f32,
    fma,
    i32,
    like,
    load,
    reduce_tree,
    shuffle,
    splat,
    store,
    vec,
)
from kinetic.backends.reference import functions as reference
from kinetic.backends.reference.quantise import INFINITY, SMALLEST

RECORD = 64
"""Bytes of one quantised activation block:

    0-31   q, int8
    32     d, float32
    36     d * sum(q), float32
    40     -8 * sum(q), int32        zero offset of 4-bit weights
    44     -16 * sum(q), int32       of 5-bit weights
    48     -128 * sum(q), int32      of 8-bit weights stored with 128 added
    52     -32 * sum(q[0:16]), int32 of 6-bit weights, lower half
    56     -32 * sum(q[16:32]), int32
    60     unused
"""

REC_D, REC_DSUM, REC_SUM8, REC_SUM16, REC_SUM128, REC_HALVES32 = 32, 36, 40, 44, 48, 52


def as_int(ty: object) -> object:
    return vec(I32, ty.count) if hasattr(ty, "count") else I32


def exp(b: Builder, x: Value) -> Value:
    ty = x.type
    low, high = like(ty, reference.EXP_MIN), like(ty, reference.EXP_MAX)
    clamped = b.select(b.fcmp_ordered("<", x, low), low, x)
    clamped = b.select(b.fcmp_ordered(">", clamped, high), high, clamped)
    y, exponent = _exp_parts(b, clamped)
    half = b.ashr(exponent, like(as_int(ty), 1))
    y = b.fmul(b.fmul(y, _power_of_two(b, half, ty)), _power_of_two(b, b.sub(exponent, half), ty))
    return b.select(b.fcmp_ordered(">", x, high), like(ty, float("inf")), y)


def _exp_parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """y and n with exp(x) = y * 2^n."""
    ty = x.type
    shifted = fma(b, x, like(ty, reference.LOG2_E), like(ty, reference.MAGIC))
    n = b.fsub(shifted, like(ty, reference.MAGIC))
    r = fma(b, n, like(ty, reference.LN2_LOW), fma(b, n, like(ty, reference.LN2_HIGH), x))
    p = like(ty, reference.EXP_COEFFICIENTS[0])
    for c in reference.EXP_COEFFICIENTS[1:]:
        p = fma(b, p, r, like(ty, c))
    y = b.fadd(fma(b, p, b.fmul(r, r), r), like(ty, 1))
    return y, b.sub(b.bitcast(shifted, as_int(ty)), like(as_int(ty), int(reference.MAGIC_BITS)))


def _power_of_two(b: Builder, n: Value, ty: object) -> Value:
    ints = as_int(ty)
    return b.bitcast(b.shl(b.add(n, like(ints, 127)), like(ints, 23)), ty)


def exp_or_zero(b: Builder, x: Value) -> Value:
    """exp(x), and 0 below -87: the weight of a key, or of a chunk. x is at most 0.

    From -87 to 0 nothing has to be clamped, and 2^n is a normal number: one multiplication gives
    the bits that the two of ``exp`` give.
    """
    ty = x.type
    y, exponent = _exp_parts(b, x)
    scaled = b.fmul(y, _power_of_two(b, exponent, ty))
    return b.select(b.fcmp_ordered("<", x, like(ty, reference.EXP_ZERO_BELOW)), like(ty, 0), scaled)


def silu(b: Builder, x: Value) -> Value:
    return b.fdiv(x, b.fadd(like(x.type, 1), exp(b, b.fneg(x))))


def gelu(b: Builder, x: Value) -> Value:
    ty = x.type
    cubic = fma(b, like(ty, reference.GELU_CUBIC), b.fmul(x, x), like(ty, 1))
    u = b.fmul(b.fmul(like(ty, reference.GELU_SLOPE), x), cubic)
    return b.fdiv(x, b.fadd(like(ty, 1), exp(b, b.fneg(u))))


def sigmoid(b: Builder, x: Value) -> Value:
    one = like(x.type, 1)
    return b.fdiv(one, b.fadd(one, exp(b, b.fneg(x))))


def relu_sqr(b: Builder, x: Value) -> Value:
    r = b.select(b.fcmp_ordered("<", x, like(x.type, 0)), like(x.type, 0), x)
    return b.fmul(r, r)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "sigmoid": sigmoid, "relu_sqr": relu_sqr}

IN_TILES = tuple(reference.GATES)
"""Activations that are also computed right behind the products they belong to."""


def gated(b: Builder, activation: str, gate: Value, up: Value) -> Value:
    """``reference.GATES``."""
    if activation in ACTIVATIONS:
        return b.fmul(ACTIVATIONS[activation](b, gate), up)
    ty = gate.type
    limit, low = like(ty, reference.SWIGLU_LIMIT), like(ty, -reference.SWIGLU_LIMIT)
    g = b.select(b.fcmp_ordered(">", gate, limit), limit, gate)
    u = b.select(b.fcmp_ordered("<", up, low), low, up)
    u = b.select(b.fcmp_ordered(">", up, limit), limit, u)
    slope = b.fmul(like(ty, reference.SWIGLU_SLOPE), g)
    share = b.fdiv(g, b.fadd(like(ty, 1), exp(b, b.fneg(slope))))
    return b.fmul(share, b.fadd(u, like(ty, 1)))


def quantise_block(b: Builder, v: Value, record: Value) -> None:
    """v <32 x float> -> the 64-byte record at address ``record``. See ``reference.quantise``."""
    ints = vec(I32, 32)
    magnitudes = b.and_(b.bitcast(v, ints), like(ints, 0x7FFFFFFF))
    amax_bits = reduce_tree(b, magnitudes, lambda b, x, y: b.select(b.icmp_signed(">", x, y), x, y))
    finite = b.icmp_signed("<", amax_bits, i32(int(INFINITY)))
    usable = b.and_(finite, b.icmp_signed(">=", amax_bits, i32(int(SMALLEST))))
    amax = b.select(usable, b.bitcast(amax_bits, F32), f32(1))
    inverse = b.fdiv(f32(127), amax)
    safe = b.select(splat(b, usable, 32), v, like(v.type, 0))
    rounded = fma(b, safe, splat(b, inverse, 32), like(v.type, reference.MAGIC))
    q = b.sub(b.bitcast(rounded, ints), like(ints, int(reference.MAGIC_BITS)))
    d = b.select(usable, b.fdiv(amax, f32(127)), b.select(finite, f32(0), f32(float("nan"))))
    low = call(b, "llvm.vector.reduce.add.v16i32", I32, [shuffle(b, q, range(16))])
    high = call(b, "llvm.vector.reduce.add.v16i32", I32, [shuffle(b, q, range(16, 32))])
    total = b.add(low, high)
    store(b, b.trunc(q, vec(I8, 32)), record, 0)
    store(b, d, record, REC_D)
    store(b, b.fmul(d, b.sitofp(total, F32)), record, REC_DSUM)
    for offset, factor, value in (
        (REC_SUM8, -8, total),
        (REC_SUM16, -16, total),
        (REC_SUM128, -128, total),
        (REC_HALVES32, -32, low),
        (REC_HALVES32 + 4, -32, high),
    ):
        store(b, b.mul(value, i32(factor)), record, offset)


def load_block(b: Builder, address: Value, offset: int = 0) -> Value:
    return load(b, address, offset, vec(F32, 32))
