"""Memory for quantisers: pointers to what lies at an address, and small arrays on the stack. Only for compiling.

A pointer is indexed like an array, and brings no reference counting along. An array on the stack is nobody
else's, which lets LLVM keep in registers what is added up there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils
from numba.core import types as nt
from numba.extending import intrinsic

from kinetic.backends.cpu.compiled import BARE

kernel = njit(**BARE)
"""A function that becomes a C function."""

small = njit(forceinline=True, **BARE)
"""A function that is compiled into its callers."""


def _pointer(kind: Any, width: ir.Type) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.inttoptr(args[0], width.as_pointer())

        return nt.CPointer(kind)(nt.int64), codegen  # type: ignore[attr-defined]

    return at


def _array(kind: Any, width: ir.Type, count: int) -> Any:
    @intrinsic
    def new(typingctx: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            made = cgutils.alloca_once(b, ir.ArrayType(width, count))
            made.align = 64
            return b.bitcast(made, width.as_pointer())

        return nt.CPointer(kind)(), codegen  # type: ignore[attr-defined]

    return new


floats_at = _pointer(nt.float32, ir.FloatType())
bytes_at = _pointer(nt.uint8, ir.IntType(8))
ints_at = _pointer(nt.int32, ir.IntType(32))


def floats(count: int) -> Any:
    """new() -> a pointer to ``count`` float32 on the caller's stack, of any value."""
    return _array(nt.float32, ir.FloatType(), count)


def ints(count: int) -> Any:
    """new() -> a pointer to ``count`` int32 on the caller's stack, of any value."""
    return _array(nt.int32, ir.IntType(32), count)


def bytes_(count: int) -> Any:
    """new() -> a pointer to ``count`` uint8 on the caller's stack, of any value."""
    return _array(nt.uint8, ir.IntType(8), count)


@small
def load(x, v, count):
    """To the stack, where stores of bytes can't change it."""
    for j in range(count):
        x[j] = v[j]
