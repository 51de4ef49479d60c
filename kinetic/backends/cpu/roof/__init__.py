"""Loops that find a processor's limits: how fast it reads memory, how fast registers multiply and add.

Written as IR and compiled for the instruction set that the kernels use, in this process: it takes less
than a second. No answer depends on them, so they lie in a folder of their own: every module
beside the kernels is part of the engine id. LLVM's optimiser never sees them; what is left,
its code generator, removes no loop, and every loop returns a sum of all it touched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from kinetic.backends.cpu import target
from kinetic.backends.cpu.dots import LANES
from kinetic.backends.cpu.ir import (
    F32,
    I8,
    I16,
    I32,
    I64,
    VOID,
    Builder,
    Loop,
    Value,
    add_floats,
    call,
    fma,
    function,
    i32,
    i64,
    like,
    load,
    reduce_tree,
    splat,
    vec,
)

LINE = 64
STEP = 256
"""Bytes that each stream reads in one turn of its loop."""

SUMS = 4
"""Vectors that what was read is added to, in turn."""

REPEATS = 4
"""Steps of each chain in one turn of a loop of arithmetic."""

T0, T1 = 3, 2
"""LLVM's names of the prefetches into all caches, and into all but the first."""


class Pattern(NamedTuple):
    """A way to read memory: so many ``streams`` side by side, asking for what lies ``ahead`` bytes on (0: not)."""

    streams: int
    ahead: int
    level: int

    @property
    def symbol(self) -> str:
        return f"read_{self.streams}_{self.ahead}_{self.level}"

    @property
    def text(self) -> str:
        """For people."""
        counted = f"{self.streams} stream{'' if self.streams == 1 else 's'}"
        asked = f"prefetch t{T0 - self.level} {self.ahead >> 10} KiB ahead" if self.ahead else "no prefetch"
        return f"{counted}, {asked}"


PATTERNS = tuple(
    Pattern(streams, *asked) for asked, streams in product([(0, T0), (2048, T0), (2048, T1), (4096, T1)], (1, 2, 4, 8))
)


class Chain(NamedTuple):
    """Arithmetic in registers. ``run(turns)`` does ``turns`` times ``operations``; a multiply-add is two."""

    name: str
    run: Callable[[int], int]
    operations: int


class Loops:
    """The compiled loops for an instruction set."""

    def __init__(self, isa: str) -> None:
        self.isa = isa
        self._engine = _compiled(isa)
        self.read: dict[Pattern, Callable[[int, int], int]] = {
            pattern: self._function(pattern.symbol, 2) for pattern in PATTERNS
        }
        """By pattern: f(address, bytes). Whole turns are read; a rest of less than ``STEP`` a stream is left out."""
        counted = 2 * REPEATS * chains(isa) * LANES[isa]
        self.float32 = Chain("float32", self._function("float32_peak", 1), counted)
        self.int8 = Chain("int8", self._function("int8_peak", 1), 4 * counted) if isa in INT8_STEPS else None
        """None where products have no instruction of their own."""

    def _function(self, name: str, arity: int) -> Callable[..., int]:
        address = self._engine.get_function_address(name)
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arity)(address)


def read_size(pattern: Pattern, size: int) -> int:
    """Bytes that a read of ``size`` bytes really reads."""
    return size // (pattern.streams * STEP) * pattern.streams * STEP


def chains(isa: str) -> int:
    """Sums that don't wait for each other: more than an instruction takes, and they stay in registers."""
    return 20 if isa == "vnni512" else 12


def _compiled(isa: str) -> llvm.ExecutionEngine:
    target.initialise()
    module = ir.Module("roof")
    module.triple = llvm.get_process_triple()
    emit(module, isa)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, target.machine(isa))
    engine.finalize_object()
    return engine


def emit(module: ir.Module, isa: str) -> None:
    for pattern in PATTERNS:
        read_loop(module, pattern, LANES[isa])
    float32_peak(module, isa)
    if isa in INT8_STEPS:
        int8_peak(module, isa)


# --- memory ---


def read_loop(module: ir.Module, pattern: Pattern, lanes: int) -> None:
    """read_*(address, size) -> a sum of all int32 there."""
    b, (start, size) = function(module, pattern.symbol, "aa", I64)
    ints = vec(I32, lanes)
    turns = b.udiv(size, i64(STEP * pattern.streams))
    part = b.mul(turns, i64(STEP))
    streams = [b.add(start, b.mul(part, i64(k))) for k in range(pattern.streams)]
    body = Loop(b, turns, [like(ints, 0)] * SUMS + streams)
    sums, places = body.values[:SUMS], body.values[SUMS:]
    for place in places:
        for offset in _asked(pattern):
            _prefetch(b, place, offset, pattern.level)
        for number, offset in enumerate(range(0, STEP, 4 * lanes)):
            here = number % SUMS
            sums[here] = b.add(sums[here], load(b, place, offset, ints, LINE // 2))
    after = body.end([*sums, *(b.add(place, i64(STEP)) for place in places)])
    _return_sum(b, after[:SUMS], add_ints)


def _asked(pattern: Pattern) -> Iterator[int]:
    yield from range(pattern.ahead, pattern.ahead + STEP, LINE) if pattern.ahead else ()


def _prefetch(b: Builder, place: Value, offset: int, level: int) -> None:
    pointer = b.inttoptr(b.add(place, i64(offset)), I8.as_pointer())
    call(b, "llvm.prefetch.p0", VOID, [pointer, i32(0), i32(level), i32(1)])


def add_ints(b: Builder, x: Value, y: Value) -> Value:
    return b.add(x, y)


def _return_sum(b: Builder, vectors: Sequence[Value], add: Callable[[Builder, Value, Value], Value]) -> None:
    total = vectors[0]
    for vector in vectors[1:]:
        total = add(b, total, vector)
    scalar = reduce_tree(b, total, add)
    b.ret(b.fptosi(scalar, I64) if scalar.type == F32 else b.zext(scalar, I64))


# --- arithmetic ---

Step = Callable[[Builder, Value, Value], Value]
"""(sum, weights) -> the next sum, int32 in each lane."""


def _vpdpbusd(b: Builder, total: Value, weights: Value) -> Value:
    return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}", total.type, [total, weights, weights])


def _pmaddubsw(b: Builder, total: Value, weights: Value) -> Value:
    """Products of bytes, of pairs, and a sum. The sum is the next factor: products of the same would be made once."""
    bytes_, shorts = vec(I8, 32), vec(I16, 16)
    factors = [b.bitcast(weights, bytes_), b.bitcast(total, bytes_)]
    pairs = call(b, "llvm.x86.avx2.pmadd.ub.sw", shorts, factors)
    return b.add(total, call(b, "llvm.x86.avx2.pmadd.wd", total.type, [pairs, like(shorts, 1)]))


INT8_STEPS: dict[str, Step] = {"vnni512": _vpdpbusd, "vnni256": _vpdpbusd, "avx2": _pmaddubsw}
"""One multiply-add of four bytes in every lane. Where four bits are in use, kernels for AVX2 may sum pairs in 16
bits first and be faster than these three instructions."""


def int8_peak(module: ir.Module, isa: str) -> None:
    """int8_peak(turns) -> a sum."""
    b, (turns,) = function(module, "int8_peak", "a", I64)
    ints = vec(I32, LANES[isa])
    weights = splat(b, b.trunc(b.add(turns, i64(0x01020304)), I32), LANES[isa])
    body = Loop(b, turns, [like(ints, k) for k in range(chains(isa))])  # equal chains would become one
    _return_sum(b, body.end(_repeated(body.values, lambda v: INT8_STEPS[isa](b, v, weights))), add_ints)


def float32_peak(module: ir.Module, isa: str) -> None:
    """float32_peak(turns) -> a sum of numbers near 2."""
    b, (turns,) = function(module, "float32_peak", "a", I64)
    floats = vec(F32, LANES[isa])
    half, one = like(floats, 0.5), like(floats, 1)
    body = Loop(b, turns, [like(floats, k) for k in range(chains(isa))])
    _return_sum(b, body.end(_repeated(body.values, lambda v: fma(b, v, half, one))), add_floats)


def _repeated(values: Sequence[Value], step: Callable[[Value], Value]) -> list[Any]:
    found = list(values)
    for _ in range(REPEATS):
        found = [step(value) for value in found]
    return found
