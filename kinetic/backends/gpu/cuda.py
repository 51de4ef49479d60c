"""Runs kernels through CUDA, compiled by NVRTC. The only module that imports cupy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.gpu import self_test
from kinetic.backends.gpu.device import Kernel, Memory, Recording
from kinetic.backends.gpu.source import CUDA_OPTIONS, kernel_source
from kinetic.bits import F32
from kinetic.errors import KineticError, OutOfMemory, UsageError

try:
    import cupy
except ImportError as error:
    raise UsageError("CUDA needs CuPy: install kinetic-engine[cuda13], or [cuda12]", name="NO_CUDA") from error

SELF_TEST_LANES = 64


def names() -> list[str]:
    """Every CUDA device; none, and no driver, is no error."""
    runtime = cupy.cuda.runtime
    try:
        return [runtime.getDeviceProperties(number)["name"].decode() for number in range(runtime.getDeviceCount())]
    except Exception:  # cupy has an exception of its own for each reason
        return []


class CudaDevice:
    """CUDA device ``number``, if it passes the self-test; UsageError otherwise."""

    kind = "cuda"
    alignment = 256

    def __init__(self, number: int = 0) -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # no driver: cupy has an exception of its own for each reason
            raise UsageError(f"this machine has no CUDA device: {error}", name="NO_DEVICE") from error
        if number >= count:
            raise UsageError(f"there is no CUDA device {number}; this machine has {count}", name="NO_DEVICE")
        self._device = cupy.cuda.Device(number)
        self.allocations = 0
        self._is_recording = False
        self._modules: dict[str, object] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self.name = str(cupy.cuda.runtime.getDeviceProperties(number)["name"].decode())
        if failed := self.failures(kernel_source("self_test")):
            raise UsageError(
                f"CUDA device '{self.name}' computes other bits than the reference in: {', '.join(failed)}",
                name="DEVICE_REFUSED",
            )

    def failures(self, source: str) -> list[str]:
        """The functions of the self-test that ``source``, built for this device, does not compute exactly."""

        def run(a: F32, b: F32, c: F32) -> F32:
            out = np.zeros((len(self_test.FUNCTIONS), len(a)), np.float32)
            memory = self.memory(out.nbytes)
            inputs = [self.upload(np.ascontiguousarray(values)) for values in (a, b, c)]
            kernel = self.kernel(source, "self_test")
            self.launch(kernel, len(a) // SELF_TEST_LANES, SELF_TEST_LANES, memory, *inputs, np.int32(len(a)))
            self.read(memory, out)
            return out

        return self_test.failures(run)

    # ---- device.Device

    def memory(self, size: int) -> Memory:
        self.allocations += 1
        try:
            with self._device, self._stream:
                return cupy.empty(max(size, 1), np.uint8)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfMemory(f"CUDA device '{self.name}' has no memory for {size / 2**20:.1f} MiB more") from error

    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        return memory[offset : offset + size]

    def pinned(self, size: int) -> NDArray[np.uint8]:
        try:
            with self._device:
                return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(size, 1)), np.uint8, size)
        except Exception as error:
            raise self._failed(error) from error

    def upload(self, values: np.ndarray) -> Memory:
        memory = self.memory(values.nbytes)
        self.write(memory, values)
        return memory

    def write(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        self.send(memory[offset : offset + values.nbytes], values.reshape(-1).view(np.uint8))
        self.finish()  # the array may be changed from now on

    def send(self, memory: Memory, values: NDArray[np.uint8]) -> None:
        self._not_recording()
        if values.nbytes == 0:
            return
        try:
            with self._device:
                memory[: values.nbytes].set(values, stream=self._stream)
        except Exception as error:
            raise self._failed(error) from error

    def read(self, memory: Memory, values: np.ndarray, offset: int = 0) -> None:
        self._not_recording()
        if values.nbytes == 0:
            return
        try:
            with self._device:
                memory[offset : offset + values.nbytes].get(stream=self._stream, out=values.reshape(-1).view(np.uint8))
        except Exception as error:
            raise self._failed(error) from error
        self.finish()

    def copy(self, target: Memory, source: Memory, size: int) -> None:
        try:
            with self._device:
                target.data.copy_from_device_async(source.data, size, self._stream)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> KineticError:
        """Runtime, driver and memory pool have exceptions of their own; what they say tells them apart."""
        if "out of memory" in str(error).lower():
            return OutOfMemory(f"CUDA device '{self.name}' has no memory left: {error}")
        return KineticError(f"CUDA device '{self.name}' failed: {error}", name="DEVICE_FAILED")

    def _not_recording(self) -> None:
        if self._is_recording:
            raise KineticError("memory of the host can't be part of a recording")

    def free_memory(self) -> int:
        """With what CuPy keeps of memory that was given back."""
        with self._device:
            free, _ = cupy.cuda.runtime.memGetInfo()
            return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def kernel(self, source: str, name: str) -> Kernel:
        if (source, name) not in self._kernels:
            try:
                with self._device:
                    if source not in self._modules:
                        self._modules[source] = cupy.RawModule(code=source, options=CUDA_OPTIONS, backend="nvrtc")
                    self._kernels[source, name] = self._modules[source].get_function(name)  # type: ignore[attr-defined]
            except Exception as error:  # of the compiler, of the driver: cupy has several kinds
                raise KineticError(f"CUDA device '{self.name}' cannot build a kernel: {error}") from error
        return self._kernels[source, name]

    def launch(self, kernel: Kernel, groups: int, lanes: int, *arguments: Memory | np.generic) -> None:
        try:
            with self._device, self._stream:
                kernel((groups,), (lanes,), arguments)
        except Exception as error:
            raise self._failed(error) from error

    def record(self, work: Callable[[], None]) -> Recording | None:
        try:
            with self._device, self._stream:
                self._stream.begin_capture()
                self._is_recording = True
                try:
                    work()
                finally:
                    self._is_recording = False
                    graph = self._stream.end_capture()
        except Exception:  # what is wrong shows when it is done without; a capture that broke off is over
            return None
        return graph

    def replay(self, recording: Recording) -> None:
        try:
            with self._device:
                recording.launch(self._stream)
        except Exception as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        try:
            with self._device:
                self._stream.synchronize()
        except Exception as error:
            raise self._failed(error) from error
