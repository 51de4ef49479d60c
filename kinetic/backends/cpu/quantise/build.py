"""Compiles quantisers to object files, in a process of its own, so that no other imports Numba.

    python -m kinetic.backends.cpu.quantise.build ISA FOLDER TYPE...

Each ggml type id becomes FOLDER/TYPE.o (see ../objects.py), written whole or not at all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import llvmlite.binding as llvm

from kinetic.backends.cpu.build import numba_module
from kinetic.backends.cpu.objects import sealed
from kinetic.backends.cpu.quantise import (
    blocks,
    eight_bits,
    few_bits,
    four_bit_floats,
    k_minimum,
    lattice_bits,
    lattice_ones,
    nonlinear,
    six_bits,
    symbol,
    three_bits,
)
from kinetic.backends.cpu.target import machine

SIGNATURE = "void(int64, int64, int64, int64, int64, int64)"

SOURCES = (
    blocks,
    eight_bits,
    few_bits,
    four_bit_floats,
    k_minimum,
    lattice_bits,
    lattice_ones,
    nonlinear,
    six_bits,
    three_bits,
)

KERNELS = {ggml_type: kernel for source in SOURCES for ggml_type, kernel in source.KERNELS.items()}


def compile_type(ggml_type: int, isa: str) -> bytes:
    """The object file of a format's kernel."""
    kernel = KERNELS[ggml_type]
    kernel.compile(SIGNATURE)
    module = numba_module(kernel, symbol(ggml_type), "v")
    module.verify()
    target = machine(isa)
    for unrolls in (False, True):  # loops over lanes must become vectors before they are unrolled
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = unrolls
        passes = llvm.create_pass_builder(target, options)
        passes.getModulePassManager().run(module, passes)
    return bytes(target.emit_object(module))


def main(argv: list[str]) -> int:
    isa, folder = argv[0], Path(argv[1])
    for unit in argv[2:]:
        temporary = folder / f"{unit}.{os.getpid()}.tmp"
        temporary.write_bytes(sealed(compile_type(int(unit), isa)))
        temporary.replace(folder / f"{unit}.o")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
