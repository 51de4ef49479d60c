"""The CPU backend: Numba and LLVM kernels, bit-equal to ``reference``. Importing it does not import Numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakSet

from kinetic.backends.base import Attention, Forward, State
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.program import CpuProgram
from kinetic.backends.cpu.system import available_cores, processor_name
from kinetic.backends.cpu.weights import WeightStore
from kinetic.backends.graph import matrices, trace
from kinetic.backends.identity import engine_digest
from kinetic.errors import UsageError
from kinetic.formats import by_type
from kinetic.types import PackCache

MAX_THREADS = 256


class CpuBackend:
    device_class = "cpu"

    def __init__(self, threads: int) -> None:
        if not 0 <= threads <= MAX_THREADS:
            raise UsageError(f"{threads} threads; choose 1 to {MAX_THREADS}, or 0 for as many as there are cores")
        self.threads = threads or available_cores()
        self.isa = target.choose()
        self.engine_id = f"cpu:{engine_digest('cpu', native.kernel_digest(self.isa))}"
        self.device_name = processor_name()
        self._packed = WeakSet[WeightStore]()
        """Of the programs loaded so far: what they share with another one is packed once."""

    def load(
        self,
        forward: Forward,
        layers: Sequence[Attention],
        progress: Callable[[str], None] | None = None,
        packs: PackCache | None = None,
        states: Sequence[State] = (),
    ) -> CpuProgram:
        nodes = trace(forward)
        types = {by_type(weight.ggml_type, weight.name).TYPE_ID for weight in matrices(nodes)}
        others = () if packs else tuple(self._packed)  # a pack has all that a program needs
        program = CpuProgram(Kernels(self.isa, types, progress), nodes, layers, self.threads, packs, states, others)
        self._packed.add(program.weights)
        return program


def open_backend(*, threads: int = 0) -> CpuBackend:
    return CpuBackend(threads)
