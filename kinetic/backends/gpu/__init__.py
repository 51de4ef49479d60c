"""The GPU backend: one source of kernels in the common subset of CUDA C and OpenCL C, bit-equal to ``reference``.

    source.py     reads kernels, names the options they must be built with
    self_test.py  the edge vectors that a device must pass before it is used
    device.py     what a program needs of a device
    opencl.py     builds and runs kernels; the only module that imports pyopencl
    cuda.py       the same for CUDA; the only module that imports cupy
    choose.py     which device a name means
    room.py       how much memory a model takes
    program.py    a model on a device; executor.py runs the nodes of its graph
    kernels/      common.h, functions.h, formats.h, and one .cu file a kernel

Importing it imports neither pyopencl nor cupy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kinetic import backends
from kinetic.backends import ALL, AUTO
from kinetic.backends.base import Attention, Backend, Forward, State
from kinetic.backends.cuts import TABLES, weights_of
from kinetic.backends.gpu import room
from kinetic.backends.gpu.choose import open_named
from kinetic.backends.gpu.device import Device
from kinetic.backends.gpu.expert_cache import ExpertOffload, left_out
from kinetic.backends.gpu.program import GpuProgram, require_kernels
from kinetic.backends.gpu.source import kernel_digest
from kinetic.backends.graph import Node, trace
from kinetic.backends.identity import engine_digest
from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type
from kinetic.types import PackCache


class GpuBackend:
    def __init__(self, device: Device, offload: ExpertOffload | None = None, context: int = 0) -> None:
        """``offload`` says which experts are elsewhere, ``context`` what a sequence has at most, where that counts."""
        self._device, self._offload, self._context = device, offload or ExpertOffload(layers=0), context
        self._id = f"{device.kind}:{engine_digest('gpu', kernel_digest())}"
        self._is_named(None)

    def load(
        self,
        forward: Forward,
        layers: Sequence[Attention],
        progress: Callable[[str], None] | None = None,
        packs: PackCache | None = None,
        states: Sequence[State] = (),
    ) -> GpuProgram:
        """Raises UnsupportedModel for a model that needs what there is no kernel for, OutOfMemory."""
        nodes, offload = trace(forward), replace(self._offload, progress=progress)
        if offload.fills:
            experts = left_out(nodes, replace(offload, cache_bytes=0))
            others = room.needed(nodes, layers, states, self._context) - experts
            offload = replace(offload, cache_bytes=max(0, self.free_memory() - others))
        program = GpuProgram(self._device, nodes, layers, states, offload)
        self._is_named(program.mixtures.host)
        if progress and (about := program.mixtures.about):
            progress(f"{self._device.name} has {about}")
        return program

    def _is_named(self, host: Backend | None) -> None:
        """The names that receipts get. ``host`` computes some of the experts of the model loaded last."""
        device = self._device
        self.device_class, self.device_name, self.engine_id, self.threads = device.kind, device.name, self._id, 1
        if host is not None:
            self.engine_id = f"{host.engine_id}+{self._id}"
            self.device_class = f"{host.device_class}+{device.kind}"
            self.device_name = f"{device.name} and, for experts, {host.device_name}"
            self.threads = host.threads

    def lacks(self, node: Node) -> str:
        """What there is no kernel for, if a node can't run here: an operation, or the format of a weight; else ""."""
        try:
            require_kernels(self._device, [node])
        except UnsupportedModel:
            return node.op
        if node.op in TABLES:  # rows of tables are looked up on the host
            return ""
        formats = (by_type(weight.ggml_type, weight.name) for weight in weights_of(node))
        return next((fmt.NAME for fmt in formats if fmt.QUANTISED and not fmt.GPU), "")

    def free_memory(self) -> int:
        """Bytes of the device that a model may take."""
        return int(self._device.free_memory() * room.SHARE)

    def needed_memory(
        self, nodes: Sequence[Node], layers: Sequence[Attention], states: Sequence[State], context: int
    ) -> int:
        """See ``room.needed``; with as many experts as the device must have."""
        return room.needed(nodes, layers, states, context) - left_out(nodes, self._offload)


def open_backend(
    name: str, *, threads: int = 0, context: int = 0, cpu_moe: int = 0, clock: Callable[[], float] | None = None
) -> GpuBackend:
    """The device called ``name``: 'opencl', 'cuda', or one of them and ':' and a number; see ``backends.open_backend``
    for the rest. Raises UsageError."""
    layers = {ALL: None, AUTO: None}.get(cpu_moe, cpu_moe)

    def host() -> Backend:
        return backends.open_backend("cpu", threads=threads)

    return GpuBackend(open_named(name), ExpertOffload(layers, None, cpu_moe == AUTO, clock, host), context)
