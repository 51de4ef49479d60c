"""Runs kernels through OpenCL, on devices that prove their arithmetic first. The only module that imports pyopencl.

Small on purpose: what the tests need to run kernels at zero tolerance on any
machine. Buffers live for one launch; nothing here runs a model yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinetic.backends.gpu import self_test
from kinetic.backends.gpu.source import OPENCL_OPTIONS, kernel_source
from kinetic.bits import F32
from kinetic.errors import KineticError, UsageError

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


def devices() -> list[cl.Device]:
    """Every device of every platform; none is no error."""
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []


def open_device(among: Sequence[cl.Device] | None = None) -> Device:
    """The first usable device. Raises UsageError that says of each why it was refused."""
    refusals = []
    for device in devices() if among is None else among:
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

    def __init__(self, device: cl.Device) -> None:
        if lacks := missing(device.single_fp_config):
            raise UsageError(f"OpenCL device '{device.name}' lacks {', '.join(lacks)}", name="DEVICE_REFUSED")
        self.name: str = device.name
        self.version: str = device.version
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context)
        if failed := self.failures(kernel_source("self_test")):
            raise UsageError(
                f"OpenCL device '{device.name}' computes other bits than the reference in: {', '.join(failed)}",
                name="DEVICE_REFUSED",
            )

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
        where = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        arguments = [
            cl.Buffer(self._context, where, hostbuf=value) if isinstance(value, np.ndarray) else value
            for value in (out, *inputs)
        ]
        cl.Kernel(program, name)(self._queue, (groups * lanes,), (lanes,), *arguments)
        cl.enqueue_copy(self._queue, out, arguments[0])
