"""What cuda.py asks of CuPy, with a CuPy that runs the same kernels through OpenCL: there is no CUDA device here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from kinetic import models
from kinetic.backends import gpu
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu import choose as choosing
from kinetic.backends.gpu.source import CUDA_OPTIONS
from kinetic.backends.reference import ReferenceBackend
from kinetic.errors import KineticError, OutOfMemory, UsageError
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.whole_models import WRITERS


class TooMuch(Exception):
    """What CuPy raises."""


class Array:
    """uint8 [size] as CuPy has it, in memory of an OpenCL device."""

    def __init__(self, device, size: int) -> None:
        if size > 1 << 40:
            raise TooMuch
        self.device, self.size, self.memory, self.data = device, size, device.memory(size), self

    def __getitem__(self, part: slice):
        start, stop, _ = part.indices(self.size)
        assert stop == part.stop

        def put(values, stream) -> None:
            assert values.dtype == np.uint8 and values.shape == (stop - start,) and stream is not None
            self.device.write(self.memory, values, start)

        def get(stream) -> np.ndarray:
            assert stream is not None
            out = np.zeros(stop - start, np.uint8)
            self.device.read(self.memory, out, start)
            return out

        return SimpleNamespace(set=put, get=get)

    def copy_from_device_async(self, source, size: int, stream) -> None:
        self.device.copy(self.memory, source.memory, size)


class Context:
    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self): ...
    def __exit__(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...


@pytest.fixture
def cuda(device, monkeypatch):
    """kinetic.backends.gpu.cuda over such a CuPy."""

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
            assert options == CUDA_OPTIONS and backend == "nvrtc"
            self.code = code

        def get_function(self, name: str):
            kernel = device.kernel(self.code, name)

            def launch(groups, lanes, arguments) -> None:
                memory = (value.memory if isinstance(value, Array) else value for value in arguments)
                device.launch(kernel, *groups, *lanes, *memory)

            return launch

    fake = ModuleType("cupy")
    fake.RawModule, fake.empty = RawModule, lambda size, kind: Array(device, size)  # type: ignore[attr-defined]
    fake.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Device=Context,
        Stream=Context,
        memory=SimpleNamespace(OutOfMemoryError=TooMuch),
        runtime=SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda number: {"name": b"Toy"}),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "kinetic.backends.gpu.cuda", raising=False)
    yield importlib.import_module("kinetic.backends.gpu.cuda")
    sys.modules.pop("kinetic.backends.gpu.cuda", None)
    vars(gpu).pop("cuda", None)


def test_a_model_through_cupy(cuda, tmp_path):
    backend = GpuBackend(choosing.open_named("cuda:0"))
    assert (backend.device_class, backend.device_name) == ("cuda", "Toy")
    with open_model_file(WRITERS["floats"](tmp_path / "model.gguf")) as file:
        family = models.build(file.gguf, file.weights)
        ours, theirs = (b.load(family.forward, family.attention) for b in (backend, ReferenceBackend()))
        batch = Batch((5, 6, 7, 8), (0, 1, 2, 3), (0,) * 4, (1, 3))
        assert_same(ours.run(batch), theirs.run(batch))
        ours.restore(1, ours.snapshot(0))
        assert_same(ours.run(Batch((3,), (4,), (1,), (0,))), theirs.run(Batch((3,), (4,), (0,), (0,))))
        ours.close()


def test_what_cuda_has_not(cuda, monkeypatch):
    device = cuda.CudaDevice()
    with pytest.raises(OutOfMemory, match=r"CUDA device 'Toy' has no memory for 2097152\.0 MiB more"):
        device.memory(1 << 41)
    with pytest.raises(UsageError, match="there is no CUDA device 1; this machine has 1"):
        cuda.CudaDevice(1)
    with pytest.raises(KineticError, match="CUDA device 'Toy' cannot build a kernel"):
        device.kernel("this is no kernel", "self_test")
    monkeypatch.setattr(cuda, "kernel_source", lambda name: WRONG)
    with pytest.raises(UsageError, match="CUDA device 'Toy' computes other bits than the reference in: "):
        cuda.CudaDevice()


WRONG = """
__kernel void self_test(__global float *out, __global const float *a, __global const float *b, __global const float *c,
                        int n)
{
    out[get_global_id(0)] = 0.0f;
}
"""
