"""Bridges from Numba code to IR: calls of emitted kernels, memory by address, atomics. Imported only when compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kinetic.backends.cpu.ir import F32, I8, I32, I64, VOID

_KINDS = {
    "a": (types.int64, I64),
    "f": (types.float32, F32),
    "i": (types.int32, I32),
    "b": (types.uint8, I8),
    "v": (types.void, VOID),
}


def _made(arity: int, generate: Callable[[], Any]) -> Any:
    """A Numba intrinsic with ``arity`` positional parameters (Numba wants them spelled out)."""
    names = ", ".join(["typingctx", *(f"x{i}" for i in range(arity))])
    space: dict[str, Any] = {"generate": generate}
    exec(f"def call({names}):\n    return generate()", space)
    return intrinsic(space["call"])


def extern(name: str, kinds: str, result: str = "v") -> Any:
    """The emitted kernel ``name``, callable from Numba code. ``kinds``: 'a' int64, 'f' float32."""
    # Numba links what it compiles at once; here it is only a means to IR and never runs, so any address will do.
    llvm.add_symbol(name, 1)

    def generate() -> Any:
        numba_types = [_KINDS[k][0] for k in kinds]
        ir_types = [_KINDS[k][1] for k in kinds]

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(_KINDS[result][1], ir_types)
            found = b.module.globals.get(name) or ir.Function(b.module, kind, name)
            value = b.call(found, args)
            return context.get_dummy_value() if result == "v" else value

        return _KINDS[result][0](*numba_types), codegen

    return _made(len(kinds), generate)


def pointer_call(arity: int) -> Any:
    """call(address, arguments...): a C function of ``arity`` int64 arguments."""

    def generate() -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(VOID, [I64] * arity)
            b.call(b.inttoptr(args[0], kind.as_pointer()), args[1:])
            return context.get_dummy_value()

        return types.void(*[types.int64] * (arity + 1)), codegen

    return _made(arity + 1, generate)


def reader(kind: str, align: int) -> Any:
    """read(address) -> the value there."""
    numba_type, ir_type = _KINDS[kind]

    def generate() -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.load(b.inttoptr(args[0], ir_type.as_pointer()), align=align)

        return numba_type(types.int64), codegen

    return _made(1, generate)


def writer(kind: str, align: int) -> Any:
    """write(address, value)."""
    numba_type, ir_type = _KINDS[kind]

    def generate() -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            b.store(args[1], b.inttoptr(args[0], ir_type.as_pointer()), align=align)
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return _made(2, generate)


@intrinsic
def field(typingctx: Any, address: Any, n: Any) -> Any:
    """The n-th int64 from ``address`` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at = b.add(args[0], b.mul(args[1], ir.Constant(I64, 8)))
        return b.load(b.inttoptr(at, I64.as_pointer()), align=8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """1 if ``expected`` stood there and ``value`` does now, else 0."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = b.inttoptr(args[0], I64.as_pointer())
        pair = b.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst")
        return b.zext(b.extract_value(pair, 1), I64)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def atomic_read(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_write(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[1], b.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


read_i64, write_i64 = reader("a", 8), writer("a", 8)
read_f32, write_f32 = reader("f", 4), writer("f", 4)
read_i32, write_i32 = reader("i", 4), writer("i", 4)
read_u8, write_u8 = reader("b", 1), writer("b", 1)
