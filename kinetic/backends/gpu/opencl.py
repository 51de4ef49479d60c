"""Runs kernels through OpenCL, on devices that prove their arithmetic first. The only module that imports pyopencl."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.gpu import self_test
from kinetic.backends.gpu.device import Memory, Recording
from kinetic.backends.gpu.source import OPENCL_OPTIONS, kernel_source
from kinetic.bits import F32
from kinetic.errors import KineticError, OutOfMemory, UsageError

try:
    import pyopencl as cl
except ImportError as error:
    raise UsageError("OpenCL needs pyopencl: install kinetic-engine[opencl]", name="NO_OPENCL") from error

NEEDED = {
    cl.device_fp_config.DENORM: "subnormal numbers",
    cl.device_fp_config.INF_NAN: "infinities and NaN",
    cl.device_fp_config.ROUND_TO_NEAREST: "rounding to nearest",
    cl.device_fp_config.FMA: "fma",
    cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT: "correctly rounded division and square root",
}

SELF_TEST_LANES = 64

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""What a recording is made of: a function of OpenCL, and its arguments."""


def devices() -> list[cl.Device]:
    """Every device of every platform; none is no error."""
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []


def graphics() -> list[cl.Device]:
    """Those of them that are GPUs."""
    return [device for device in devices() if device.type & cl.device_type.GPU]


def numbered(number: int) -> Device:
    """Device ``number`` in the order of ``devices``. Raises UsageError."""
    found = devices()
    if number >= len(found):
        names = ", ".join(f"{i}: {device.name}" for i, device in enumerate(found)) or "none"
        raise UsageError(f"there is no OpenCL device {number}; this machine has {names}", name="NO_DEVICE")
    return Device(found[number])


def open_device(among: Sequence[cl.Device] | None = None) -> Device:
    """The first usable device, GPUs before others. Raises UsageError that says of each why it was refused."""
    refusals = []
    gpus = graphics() if among is None else []
    for device in [*gpus, *(d for d in devices() if d not in gpus)] if among is None else among:
        try:
            return Device(device)
        except UsageError as refusal:
            refusals.append(str(refusal))
    raise UsageError("; ".join(refusals) or "this machine has no OpenCL device", name="NO_DEVICE")


def missing(single_fp_config: int) -> list[str]:
    """What a device that reports this lacks."""
    return [what for flag, what in NEEDED.items() if not single_fp_config & flag]


class Device:
    """A device that offers the arithmetic and passed the self-test; UsageError otherwise."""

    kind = "opencl"

    def __init__(self, device: cl.Device) -> None:
        if lacks := missing(device.single_fp_config):
            raise UsageError(f"OpenCL device '{device.name}' lacks {', '.join(lacks)}", name="DEVICE_REFUSED")
        self.name: str = device.name
        self.version: str = device.version
        self.alignment = max(64, device.mem_base_addr_align // 8)
        self.allocations = 0
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context)
        self._kernels: dict[tuple[str, str], cl.Kernel] = {}
        self._programs: dict[str, cl.Program] = {}
        self._recording: list[Call] | None = None
        self._sent: cl.Event = None
        if failed := self.failures(kernel_source("self_test")):
            raise UsageError(
                f"OpenCL device '{device.name}' computes other bits than the reference in: {', '.join(failed)}",
                name="DEVICE_REFUSED",
            )

    def free_memory(self) -> int:
        """What AMD's driver says; others tell no more than what there is in all."""
        device = self._context.devices[0]
        try:
            return int(device.global_free_memory_amd[0]) << 10
        except (AttributeError, cl.Error):
            return int(device.global_mem_size)

    def failures(self, source: str) -> list[str]:
        """The functions of the self-test that ``source``, built for this device, does not compute exactly."""
        program = self.build(source)

        def run(a: F32, b: F32, c: F32) -> F32:
            out = np.zeros((len(self_test.FUNCTIONS), len(a)), np.float32)
            groups = len(a) // SELF_TEST_LANES
            self.run(program, "self_test", groups, SELF_TEST_LANES, out, a, b, c, np.int32(len(a)))
            return out

        return self_test.failures(run)

    def build(self, source: str) -> cl.Program:
        try:
            return cl.Program(self._context, source).build(options=list(OPENCL_OPTIONS))
        except cl.Error as error:
            raise KineticError(f"OpenCL device '{self.name}' cannot build a kernel") from error

    def run(
        self, program: cl.Program, name: str, groups: int, lanes: int, out: np.ndarray, *inputs: np.ndarray | np.generic
    ) -> None:
        """Launch ``groups`` groups of ``lanes`` lanes and wait. ``out`` is the kernel's first argument and is changed.

        Arrays are copied to the device, contiguous ones only; scalars are NumPy's, with the kernel's types.
        """
        arguments = [self.upload(value) if isinstance(value, np.ndarray) else value for value in (out, *inputs)]
        self.launch(cl.Kernel(program, name), groups, lanes, *arguments)
        self.read(arguments[0], out)

    # ---- device.Device

    def memory(self, size: int) -> Memory:
        self.allocations += 1
        try:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(size, 1))
        except cl.Error as error:
            raise self._too_large(size) from error

    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        try:
            return memory.get_sub_region(offset, size)
        except cl.Error as error:
            raise self._failed(error) from error

    def pinned(self, size: int) -> NDArray[np.uint8]:
        flags, access = cl.mem_flags, cl.map_flags
        try:
            memory = cl.Buffer(self._context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, max(size, 1))
            shape, rights = (max(size, 1),), access.READ | access.WRITE
            return cl.enqueue_map_buffer(self._queue, memory, rights, 0, shape, np.uint8)[0][:size]
        except cl.Error as error:
            raise self._failed(error) from error

    def upload(self, values: np.ndarray) -> Memory:
        memory = self.memory(values.nbytes)
        self.write(memory, values)
        return memory

    def write(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        self._not_recording()
        self._copy(memory, values, values.nbytes, dst_offset=offset)

    def send(self, memory: Memory, values: NDArray[np.uint8]) -> None:
        self._not_recording()
        try:
            self._sent = cl.enqueue_copy(self._queue, memory, values, is_blocking=False)  # waited for where it is lost
        except cl.Error as error:
            raise self._failed(error) from error

    def read(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        self._not_recording()
        self._copy(values, memory, values.nbytes, src_offset=offset)

    def copy(self, target: Memory, source: Memory, size: int) -> None:
        if self._recording is not None:
            self._recording.append((self.copy, (target, source, size)))
        else:
            self._copy(target, source, size, byte_count=size)

    def _copy(self, target: Memory, source: Memory, size: int, **where: int) -> None:
        if size == 0:
            return
        try:
            cl.enqueue_copy(self._queue, target, source, **where)
        except cl.MemoryError as error:  # some drivers take the memory only now
            raise self._too_large(size) from error
        except cl.Error as error:
            raise self._failed(error) from error

    def _too_large(self, size: int) -> OutOfMemory:
        return OutOfMemory(f"OpenCL device '{self.name}' has no memory for {size / 2**20:.1f} MiB more")

    def _failed(self, error: cl.Error) -> KineticError:
        if isinstance(error, cl.MemoryError):
            return OutOfMemory(f"OpenCL device '{self.name}' has no memory left for its kernels")
        return KineticError(f"OpenCL device '{self.name}' failed: {error}", name="DEVICE_FAILED")

    def _not_recording(self) -> None:
        if self._recording is not None:
            raise KineticError("memory of the host can't be part of a recording")

    def kernel(self, source: str, name: str) -> cl.Kernel:
        if (source, name) not in self._kernels:
            if source not in self._programs:
                self._programs[source] = self.build(source)
            self._kernels[source, name] = cl.Kernel(self._programs[source], name)
        return self._kernels[source, name]

    def launch(self, kernel: cl.Kernel, groups: int, lanes: int, *arguments: Memory | np.generic) -> None:
        sizes = (groups * lanes,), (lanes,)
        try:
            if self._recording is not None:  # arguments stay with a kernel: each launch has its own
                kernel = cl.Kernel(kernel.program, kernel.function_name)
                kernel.set_args(*arguments)
                self._recording.append((cl.enqueue_nd_range_kernel, (self._queue, kernel, *sizes)))
            else:
                kernel(self._queue, *sizes, *arguments)
        except cl.Error as error:
            raise self._failed(error) from error

    def record(self, work: Callable[[], None]) -> Recording | None:
        recording: list[Call] = []
        self._recording = recording
        try:
            work()
        except Exception:  # what is wrong shows when it is done without
            return None
        finally:
            self._recording = None
        return recording

    def replay(self, recording: Recording) -> None:
        try:
            for call, arguments in recording:
                call(*arguments)
        except cl.Error as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        try:
            self._queue.finish()
        except cl.Error as error:
            raise self._failed(error) from error
