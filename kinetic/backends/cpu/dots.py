"""Exact integer dot products of 4-byte groups, for each instruction set.

Weights are unsigned bytes (the offset is added through the activation's sums),
activations signed bytes in -127..127. ``lanes`` output rows are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from kinetic.backends.cpu.functions import REC_HALVES32, REC_SUM8, REC_SUM16, REC_SUM128
from kinetic.backends.cpu.ir import (
    I1,
    I8,
    I16,
    I32,
    Builder,
    Value,
    call,
    like,
    load_splat,
    shuffle,
    vec,
)
from kinetic.formats import Format

LANES = {"vnni512": 16, "vnni256": 8, "avx2": 8, "plain": 8}
"""Instruction sets, best first, and rows computed at once."""

_OFFSET = {
    1: (REC_SUM8, 3),
    2: (REC_SUM8, 2),
    4: (REC_SUM8, 1),
    8: (REC_SUM8, 0),
    16: (REC_SUM16, 0),
    32: (REC_SUM128, 2),
    64: (REC_SUM128, 1),
    128: (REC_SUM128, 0),
}
"""-ZERO times the sum of a block: where a record has a multiple, and by how many bits that has to go to the right."""


_SHUFFLES = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}


def top(fmt: Format) -> int:
    """The largest unsigned byte that stands for a weight."""
    return (1 << fmt.BITS) - 1 if fmt.TABLE is None else max(fmt.TABLE) + fmt.ZERO


def look_up(b: Builder, isa: str, fmt: Format, codes: Value) -> Value:
    """The unsigned bytes, integers plus ``fmt.ZERO``, that codes below 16 stand for."""
    assert fmt.TABLE is not None
    entries = [q + fmt.ZERO for q in fmt.TABLE]
    entries += [0] * (16 - len(entries))
    ty = codes.type
    if isa == "plain":
        return _chosen(b, codes, entries)
    table = ir.Constant(ty, entries * (ty.count // 16))
    return call(b, _SHUFFLES[ty.count], ty, [table, codes])


def _chosen(b: Builder, codes: Value, entries: Sequence[int]) -> Value:
    """The same by choosing between two values, one bit of the codes after the other: any processor."""
    ty = codes.type
    values = [like(ty, entry) for entry in entries]
    for bit in range(4):
        is_set = b.icmp_unsigned("!=", b.and_(codes, like(ty, 1 << bit)), like(ty, 0))
        values = [b.select(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def block_dot(b: Builder, isa: str, fmt: Format, words: Sequence[Value], record: Value) -> Value:
    """Dot product of a block of 32, int32 x lanes: eight ``words`` (4 x lanes bytes) with the record's q."""
    start = None
    if fmt.ZERO and not is_signed(isa, fmt):
        field, by = _OFFSET[fmt.ZERO]
        start = _moved(b, load_splat(b, record, field, I32, LANES[isa]), -by)
    return _dot(b, isa, fmt, words, record, 0, start)


def half_dots(b: Builder, isa: str, fmt: Format, words: Sequence[Value], record: Value) -> tuple[Value, Value]:
    """The same for each half of 16 elements."""
    low = high = None
    if fmt.ZERO and not is_signed(isa, fmt):
        by = fmt.ZERO.bit_length() - 6  # a record has -32 times the sums
        low = _moved(b, load_splat(b, record, REC_HALVES32, I32, LANES[isa]), by)
        high = _moved(b, load_splat(b, record, REC_HALVES32 + 4, I32, LANES[isa]), by)
    return _dot(b, isa, fmt, words[:4], record, 0, low), _dot(b, isa, fmt, words[4:], record, 16, high)


def _moved(b: Builder, v: Value, by: int) -> Value:
    """Shifted left, or right where ``by`` is negative; what is lost is zeros."""
    if by == 0:
        return v
    return b.shl(v, like(v.type, by)) if by > 0 else b.ashr(v, like(v.type, -by))


def is_signed(isa: str, fmt: Format) -> bool:
    """Whether bytes are too large for sums of two products in 16 bits, so that the signed form is used."""
    return isa == "avx2" and _fitting(fmt) == 0


def _fitting(fmt: Format) -> int:
    """Sums of two products, of the largest weight and activations of 127, that 16 bits hold added up."""
    return 32767 // (2 * 127 * top(fmt))


def _dot(
    b: Builder, isa: str, fmt: Format, words: Sequence[Value], record: Value, at: int, start: Value | None
) -> Value:
    lanes = LANES[isa]
    xs = [load_splat(b, record, at + 4 * j, I32, lanes) for j in range(len(words))]
    xs = [b.bitcast(x, vec(I8, 4 * lanes)) for x in xs]
    if isa.startswith("vnni"):
        return _vnni(b, lanes, words, xs, start)
    if isa == "avx2":
        return _avx2(b, fmt, words, xs, start)
    return _plain(b, lanes, words, xs, start)


def _vnni(b: Builder, lanes: int, words: Sequence[Value], xs: Sequence[Value], start: Value | None) -> Value:
    """Two chains, so that less has to wait for what was before it.

    Operands travel as 32-bit lanes: older LLVM wants that, newer accepts it too.
    """
    ints = vec(I32, lanes)
    half = len(words) // 2
    totals = [like(ints, 0) if start is None else start, like(ints, 0)]
    for j in range(half):
        for chain, at in enumerate((j, half + j)):
            operands = [totals[chain], b.bitcast(words[at], ints), b.bitcast(xs[at], ints)]
            totals[chain] = call(b, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", ints, operands)
    return b.add(*totals)


def _avx2(b: Builder, fmt: Format, words: Sequence[Value], xs: Sequence[Value], start: Value | None) -> Value:
    """Products of pairs are summed in 16 bits as long as they cannot overflow, then widened once."""
    fits = _fitting(fmt)
    if fits == 0:
        words, xs = _sign_form(b, words, xs)
        fits = 1  # it reaches 32512
    shorts, ints = vec(I16, 16), vec(I32, 8)
    total = start
    for first in range(0, len(words), fits):
        part = None
        for w, x in zip(words[first : first + fits], xs[first : first + fits], strict=True):
            pairs = call(b, "llvm.x86.avx2.pmadd.ub.sw", shorts, [w, x])
            part = pairs if part is None else b.add(part, pairs)
        wide = call(b, "llvm.x86.avx2.pmadd.wd", ints, [part, like(shorts, 1)])
        total = wide if total is None else b.add(total, wide)
    return total


def _sign_form(b: Builder, words: Sequence[Value], xs: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """|w| and x * sign(w): exact because |x| <= 127, where the offset form would saturate."""
    ty = vec(I8, 32)
    signed = [b.xor(w, like(ty, 128)) for w in words]
    magnitudes = [call(b, "llvm.abs.v32i8", ty, [w, like(I1, 0)]) for w in signed]
    turned = [call(b, "llvm.x86.avx2.psign.b", ty, [x, w]) for x, w in zip(xs, signed, strict=True)]
    return magnitudes, turned


def _plain(b: Builder, lanes: int, words: Sequence[Value], xs: Sequence[Value], start: Value | None) -> Value:
    """Widened to 16 bits (255 * 127 fits), products summed in 32: any processor."""
    shorts, ints = vec(I16, 4 * lanes), vec(I32, lanes)
    total = like(ints, 0) if start is None else start
    for w, x in zip(words, xs, strict=True):
        products = b.mul(b.zext(w, shorts), b.sext(x, shorts))
        for k in range(4):
            total = b.add(total, b.sext(shuffle(b, products, range(k, 4 * lanes, 4)), ints))
    return total
