"""Which instruction sets this machine has, and LLVM's target for each. Needs llvmlite, not Numba."""

from __future__ import annotations

import os
from functools import lru_cache

import llvmlite.binding as llvm

from kinetic.backends.cpu.control import x86
from kinetic.backends.cpu.dots import LANES
from kinetic.errors import UsageError

ENVIRONMENT = "KINETIC_CPU_ISA"
"""Names an instruction set of ``dots.LANES`` to use instead of the best one. It cannot change a bit."""

_NEEDS = {
    "vnni512": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma"),
    "vnni256": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma"),
    "avx2": ("avx2", "f16c", "fma"),
    # Without F16C LLVM would call conversion functions that a process need not have.
    "plain": ("f16c", "fma") if x86() else (),
}


@lru_cache(maxsize=1)
def initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@lru_cache(maxsize=1)
def host_features() -> dict[str, bool]:
    return dict(llvm.get_host_cpu_features())


def available() -> list[str]:
    """Instruction sets this machine can run, best first."""
    return [isa for isa in LANES if all(host_features().get(need, False) for need in _NEEDS[isa])]


def choose() -> str:
    """The best instruction set, or the one that ``KINETIC_CPU_ISA`` names."""
    wanted = os.environ.get(ENVIRONMENT)
    if not available():
        raise UsageError(
            "this processor lacks F16C or FMA, which the CPU backend needs; --device reference works, slowly",
            name="UNSUPPORTED_PROCESSOR",
        )
    if not wanted:
        return available()[0]
    if wanted not in available():
        raise UsageError(
            f"{ENVIRONMENT}={wanted}: this machine offers {', '.join(available())}", name="UNAVAILABLE_INSTRUCTION_SET"
        )
    return wanted


def processor(isa: str) -> tuple[str, str]:
    """LLVM's processor name and feature list for an instruction set."""
    if isa == "avx2":
        return "x86-64-v3", ""
    features = llvm.get_host_cpu_features()
    if isa == "vnni512":
        features["prefer-256-bit"] = False
    return llvm.get_host_cpu_name(), features.flatten()


def machine(isa: str) -> llvm.TargetMachine:
    initialise()
    cpu, features = processor(isa)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True, codemodel="jitdefault")
