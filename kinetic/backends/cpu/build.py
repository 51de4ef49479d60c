"""Compiles units of kernels to object files. Runs in a process of its own, so that the engine never imports Numba.

    python -m kinetic.backends.cpu.build ISA FOLDER UNIT...

A unit is 'core' (interpreter and row kernels), 'attention' (that, experts,
recurrences and the choice of candidates) or a ggml type
id (one format's tile and packing kernels). Each becomes FOLDER/UNIT.o (see objects.py), written whole or not at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from kinetic.backends.cpu import (
    activation_rows,
    attention,
    bounds,
    control,
    delta_rows,
    float_tiles,
    halves,
    rows,
    scan,
    tiles,
)
from kinetic.backends.cpu.objects import sealed
from kinetic.backends.cpu.target import machine
from kinetic.formats import Format, by_type

PACK_SIGNATURE = "void(int64, int64, int64, int64, int64, int64, int64)"


def core_unit(isa: str) -> llvm.ModuleRef:
    from kinetic.backends.cpu import core, core_ops, core_work

    return with_kernels(emitted("core", rows.emit, activation_rows.emit, control.emit), core, core_ops, core_work)


def attention_unit(isa: str) -> llvm.ModuleRef:
    from kinetic.backends.cpu import (
        core_attention,
        core_candidates,
        core_delta,
        core_experts,
        core_recurrent,
        core_routes,
        core_scan,
        core_shortlist,
    )

    sources = [core_attention, core_candidates, core_delta, core_experts, core_recurrent, core_routes, core_scan]
    sources.append(core_shortlist)
    by_isa = [lambda m, part=part: part.emit(m, isa) for part in (attention, delta_rows, bounds)]
    return with_kernels(emitted("attention", *by_isa, halves.emit, scan.emit), *sources)


def with_kernels(module: llvm.ModuleRef, *sources: ModuleType) -> llvm.ModuleRef:
    """``module`` and the kernels that these Python modules define."""
    from kinetic.backends.cpu.compiled import KERNELS

    names = {source.__name__ for source in sources}
    for name, (function, result) in KERNELS.items():
        if function.__module__ in names:
            module.link_in(numba_module(function, name, result))
    return module


def format_unit(type_id: int, isa: str) -> llvm.ModuleRef:
    from kinetic.backends.cpu import packing

    fmt = by_type(type_id, "?")
    made = emitted(fmt.NAME, lambda m: emit_tiles(m, fmt, isa))
    pack = packing.make_pack(fmt)
    pack.compile(PACK_SIGNATURE)
    made.link_in(numba_module(pack, f"pack_{fmt.NAME.lower()}", "v"))
    return made


def emit_tiles(module: ir.Module, fmt: Format, isa: str) -> None:
    """The tile kernels of any format."""
    if fmt.QUANTISED:
        tiles.emit(module, fmt, isa)
        if fmt is bounds.WHOLE:
            tiles.emit(module, fmt, isa, halves.Halves(fmt))
    else:
        float_tiles.emit(module, fmt)


def emitted(name: str, *emitters: Callable[[ir.Module], None]) -> llvm.ModuleRef:
    module = ir.Module(name)
    module.triple = llvm.get_process_triple()
    for emit in emitters:
        emit(module)
    return llvm.parse_assembly(str(module))


def numba_module(function: Any, export: str, result: str) -> llvm.ModuleRef:
    """The LLVM module of a compiled Numba function, with a C function ``export`` around it and all else internal.

    Numba's own convention is ``i32 f(result *, error **, arguments)``; these kernels raise nothing.
    """
    (signature,) = function.signatures
    text = function.inspect_llvm(signature)
    native = function.overloads[signature].fndesc.llvm_func_name
    quoted = f'"{native}"' if f'@"{native}"' in text else native
    parameters = ", ".join(f"i64 %a{n}" for n in range(len(signature)))
    returns, last = ("i64", "ret i64 %value") if result == "a" else ("void", "ret void")
    slot = "i64" if result == "a" else "ptr"
    text += (
        f"\ndefine {returns} @{export}({parameters}) {{\n  %ret = alloca {slot}\n  %info = alloca ptr\n"
        f"  %status = call i32 @{quoted}(ptr %ret, ptr %info, {parameters})\n"
        f"  %value = load {slot}, ptr %ret\n  {last}\n}}\n"
    )
    module = llvm.parse_assembly(text)
    for made in module.functions:
        if not made.is_declaration and made.name != export:
            made.linkage = "internal"
    return module


def compile_unit(unit: str, isa: str) -> bytes:
    made = {"core": core_unit, "attention": attention_unit}.get(unit)
    module = made(isa) if made else format_unit(int(unit), isa)
    module.verify()
    target = machine(isa)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    return bytes(target.emit_object(module))


def main(argv: list[str]) -> int:
    isa, folder = argv[0], Path(argv[1])
    for unit in argv[2:]:
        temporary = folder / f"{unit}.{os.getpid()}.tmp"
        temporary.write_bytes(sealed(compile_unit(unit, isa)))
        temporary.replace(folder / f"{unit}.o")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
