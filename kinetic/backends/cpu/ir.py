"""Small vocabulary for writing LLVM IR: vector types, addresses, structured loops.

All addresses are i64 values; offsets are Python ints in bytes. Floating-point
operations carry no fast-math flags, so LLVM neither contracts nor reorders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
VOID = ir.VoidType()

Value = Any
Builder = Any


def vec(element: Any, n: int) -> Any:
    return ir.VectorType(element, n)


def i64(n: int) -> Value:
    return ir.Constant(I64, n)


def i32(n: int) -> Value:
    return ir.Constant(I32, n)


def f32(x: float) -> Value:
    return ir.Constant(F32, float(x))


def like(ty: Any, x: float | np.floating[Any]) -> Value:
    """The constant x, as a scalar or in every lane, of type ``ty``."""
    if isinstance(ty, ir.VectorType):
        element = int(x) if isinstance(ty.element, ir.IntType) else float(x)
        return ir.Constant(ty, [element] * ty.count)
    return ir.Constant(ty, int(x) if isinstance(ty, ir.IntType) else float(x))


def declare(b: Builder, name: str, result: Any, args: Sequence[Any]) -> Value:
    """The function ``name`` of the module, declared on first use."""
    found = b.module.globals.get(name)
    return found or ir.Function(b.module, ir.FunctionType(result, args), name)


def call(b: Builder, name: str, result: Any, args: Sequence[Value]) -> Value:
    return b.call(declare(b, name, result, [a.type for a in args]), args)


def _pointer(b: Builder, address: Value, offset: int, ty: Any) -> Value:
    moved = b.add(address, i64(offset)) if offset else address
    return b.inttoptr(moved, ty.as_pointer())


def load(b: Builder, address: Value, offset: int, ty: Any, align: int = 4) -> Value:
    return b.load(_pointer(b, address, offset, ty), align=align)


def store(b: Builder, value: Value, address: Value, offset: int = 0, align: int = 4) -> None:
    b.store(value, _pointer(b, address, offset, value.type), align=align)


def fetch(b: Builder, address: Value, for_writing: bool = False) -> None:
    """Ask for a line of memory, into the second level of caches. Any address will do, even one that does not exist."""
    pointer = b.inttoptr(address, I8.as_pointer())
    call(b, "llvm.prefetch.p0", VOID, [pointer, i32(int(for_writing)), i32(3 if for_writing else 2), i32(1)])


def splat(b: Builder, scalar: Value, n: int) -> Value:
    ty = vec(scalar.type, n)
    one = b.insert_element(ir.Constant(ty, ir.Undefined), scalar, i32(0))
    return b.shuffle_vector(one, ir.Constant(ty, ir.Undefined), ir.Constant(vec(I32, n), [0] * n))


def load_splat(b: Builder, address: Value, offset: int, ty: Any, n: int) -> Value:
    return splat(b, load(b, address, offset, ty), n)


def shuffle(b: Builder, v: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
    second = ir.Constant(v.type, ir.Undefined) if other is None else other
    return b.shuffle_vector(v, second, ir.Constant(vec(I32, len(lanes)), list(lanes)))


def suffix(ty: Any) -> str:
    """The name of a type in an overloaded LLVM intrinsic: f32, v16f32, v8i32..."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{suffix(ty.element)}"
    return "f32" if ty == F32 else f"i{ty.width}"


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, f"llvm.fma.{suffix(x.type)}", x.type, [x, y, z])


def sqrt(b: Builder, x: Value) -> Value:
    return call(b, f"llvm.sqrt.{suffix(x.type)}", x.type, [x])


def minimum(b: Builder, x: Value, y: Value) -> Value:
    """Smaller of two signed integers."""
    return b.select(b.icmp_signed("<", x, y), x, y)


class Loop:
    """``for i in range(n)`` with carried values. Fill the body, then ``end(new_values)``."""

    def __init__(self, b: Builder, n: Value, carried: Sequence[Value] = ()) -> None:
        self._b = b
        before = b.block
        self._head, self._body, self._exit = (b.append_basic_block(name) for name in ("head", "body", "exit"))
        b.branch(self._head)
        b.position_at_end(self._head)
        self.i = b.phi(I64)
        self.i.add_incoming(i64(0), before)
        self.values = [b.phi(value.type) for value in carried]
        for phi, value in zip(self.values, carried, strict=True):
            phi.add_incoming(value, before)
        b.cbranch(b.icmp_signed("<", self.i, n), self._body, self._exit)
        b.position_at_end(self._body)

    def end(self, new_values: Sequence[Value] = ()) -> list[Value]:
        """Close the loop; returns the carried values as they stand after it."""
        b, last = self._b, self._b.block
        self.i.add_incoming(b.add(self.i, i64(1)), last)
        for phi, value in zip(self.values, new_values, strict=True):
            phi.add_incoming(value, last)
        b.branch(self._head)
        b.position_at_end(self._exit)
        return list(self.values)


@contextmanager
def loop(b: Builder, n: Value) -> Iterator[Value]:
    """``with loop(b, n) as i``: a loop that carries nothing."""
    body = Loop(b, n)
    yield body.i
    body.end()


def reduce_tree(b: Builder, v: Value, combine: Callable[[Builder, Value, Value], Value]) -> Value:
    """Lanes i and i + n/2, again and again, down to one scalar."""
    n = v.type.count
    while n > 1:
        n //= 2
        v = combine(b, shuffle(b, v, range(n)), shuffle(b, v, range(n, 2 * n)))
    return b.extract_element(v, i32(0))


def add_floats(b: Builder, x: Value, y: Value) -> Value:
    return b.fadd(x, y)


def larger_float(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.fcmp_ordered(">", y, x), y, x)


def function(module: ir.Module, name: str, args: str, result: Any = VOID) -> tuple[Any, Any]:
    """A C function whose parameters are 'a' (i64 address or count) or 'f' (float). Returns (builder, arguments)."""
    types = [{"a": I64, "f": F32}[kind] for kind in args]
    made = ir.Function(module, ir.FunctionType(result, types), name)
    return ir.IRBuilder(made.append_basic_block("entry")), made.args
