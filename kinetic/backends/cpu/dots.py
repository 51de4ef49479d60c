"""Exact integer dot products of 4-byte groups, for each instruction set.

Weights are unsigned bytes (the offset is added through the activation's sums),
activations signed bytes in -127..127. ``lanes`` output rows are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

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

_OFFSET = {0: None, 8: REC_SUM8, 16: REC_SUM16, 128: REC_SUM128}


def block_dot(b: Builder, isa: str, fmt: Format, words: Sequence[Value], record: Value) -> Value:
    """Dot product of a block of 32, int32 x lanes: eight ``words`` (4 x lanes bytes) with the record's q."""
    lanes = LANES[isa]
    signed = isa == "avx2" and fmt.BITS == 8
    offset = None if signed else _OFFSET[fmt.ZERO]
    start = load_splat(b, record, offset, I32, lanes) if offset else None
    return _dot(b, isa, fmt.BITS, words, record, 0, start)


def half_dots(b: Builder, isa: str, words: Sequence[Value], record: Value) -> tuple[Value, Value]:
    """The same for each half of 16 elements of a 6-bit format."""
    lanes = LANES[isa]
    low = load_splat(b, record, REC_HALVES32, I32, lanes)
    high = load_splat(b, record, REC_HALVES32 + 4, I32, lanes)
    return _dot(b, isa, 6, words[:4], record, 0, low), _dot(b, isa, 6, words[4:], record, 16, high)


def _dot(b: Builder, isa: str, bits: int, words: Sequence[Value], record: Value, at: int, start: Value | None) -> Value:
    lanes = LANES[isa]
    xs = [load_splat(b, record, at + 4 * j, I32, lanes) for j in range(len(words))]
    xs = [b.bitcast(x, vec(I8, 4 * lanes)) for x in xs]
    if isa.startswith("vnni"):
        return _vnni(b, lanes, words, xs, start)
    if isa == "avx2":
        return _avx2(b, bits, words, xs, start)
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


def _avx2(b: Builder, bits: int, words: Sequence[Value], xs: Sequence[Value], start: Value | None) -> Value:
    """Products of pairs are summed in 16 bits as long as they cannot overflow, then widened once."""
    if bits == 8:
        words, xs = _sign_form(b, words, xs)
    fits = {4: 8, 5: 4, 6: 2, 8: 1}[bits]  # n * 2 * (2^bits - 1) * 127 <= 32767; the sign form reaches 32512
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
