"""IR for what is not arithmetic: waiting, and the floating-point control word."""

from __future__ import annotations

import platform

from llvmlite import ir

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.ir import I32, I64, VOID, Builder, call, function, i64, load

MXCSR_DEFAULT = 0x1F80
"""Round to nearest, subnormals kept, all exceptions masked. FPCR's equivalent on ARM is 0."""


def emit(module: ir.Module) -> None:
    yield_processor(module)
    pause(module)
    set_control_word(module)
    restore_control_word(module)


def x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def yield_processor(module: ir.Module) -> None:
    """yield_processor(sync): let another thread of the machine run, through the function at ``sync`` + YIELD if any."""
    b, (sync,) = function(module, "yield_processor", "a")
    address = load(b, sync, tape.YIELD, I64, 8)
    with b.if_then(b.icmp_signed("!=", address, i64(0))):
        b.call(b.inttoptr(address, ir.FunctionType(I32, []).as_pointer()), [])
    b.ret_void()


def pause(module: ir.Module) -> None:
    """One step of a spin."""
    b, _ = function(module, "pause", "")
    if x86():
        call(b, "llvm.x86.sse2.pause", VOID, [])
    b.ret_void()


def set_control_word(module: ir.Module) -> None:
    """set_control_word() -> the old one. IEEE defaults from here on, on this thread."""
    b, _ = function(module, "set_control_word", "", I64)
    if x86():
        slot = b.alloca(I32)
        call(b, "llvm.x86.sse.stmxcsr", VOID, [_bytes(b, slot)])
        old = b.zext(b.load(slot), I64)
        b.store(ir.Constant(I32, MXCSR_DEFAULT), slot)
        call(b, "llvm.x86.sse.ldmxcsr", VOID, [_bytes(b, slot)])
        b.ret(old)
    elif platform.machine().lower() in ("arm64", "aarch64"):
        old = call(b, "llvm.aarch64.get.fpcr", I64, [])
        call(b, "llvm.aarch64.set.fpcr", VOID, [i64(0)])
        b.ret(old)
    else:
        b.ret(i64(0))


def restore_control_word(module: ir.Module) -> None:
    """restore_control_word(old)."""
    b, (old,) = function(module, "restore_control_word", "a")
    if x86():
        slot = b.alloca(I32)
        b.store(b.trunc(old, I32), slot)
        call(b, "llvm.x86.sse.ldmxcsr", VOID, [_bytes(b, slot)])
    elif platform.machine().lower() in ("arm64", "aarch64"):
        call(b, "llvm.aarch64.set.fpcr", VOID, [old])
    b.ret_void()


def _bytes(b: Builder, slot: object) -> object:
    return b.bitcast(slot, ir.IntType(8).as_pointer())
