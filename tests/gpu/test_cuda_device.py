"""What cuda.py asks of CuPy, with a CuPy that runs the same kernels through OpenCL: there is no CUDA device here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

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
    """uint8 [size] as CuPy has it, in memory of an OpenCL device: all of it, or a part."""

    def __init__(self, stream, memory, first: int, size: int) -> None:
        self.stream, self.root, self.first, self.size, self.data = stream, memory, first, size, self

    @property
    def memory(self):
        whole = self.first == 0 and self.size == self.root.size
        return self.root if whole else self.stream.device.part(self.root, self.first, self.size)

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(self.size)
        assert part.stop is None or stop == part.stop
        return Array(self.stream, self.root, self.first + start, stop - start)

    def set(self, values, stream) -> None:
        assert values.dtype == np.uint8 and values.shape == (self.size,)
        stream.only_plainly()
        self.stream.device.write(self.root, values, self.first)

    def get(self, stream, out) -> None:
        assert out.dtype == np.uint8 and out.shape == (self.size,)
        stream.only_plainly()
        self.stream.device.read(self.root, out, self.first)

    def copy_from_device_async(self, source, size: int, stream) -> None:
        stream.do(self.stream.device.copy, self.memory, source.memory, size)


class Context:
    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self): ...
    def __exit__(self, *_: object) -> None: ...


class Graph:
    def __init__(self, work) -> None:
        self.work = work

    def launch(self, stream) -> None:
        for what, arguments in self.work:
            stream.do(what, *arguments)


def stream_of(device):
    """A class of streams that capture; what they may not do while they capture is an error, and ends in one."""

    class Stream(Context):
        current: ClassVar[list] = []
        graphs: ClassVar[list] = []

        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking  # the others can't be captured beside it
            self.captured, self.is_spoilt = None, False

        def __enter__(self) -> None:
            self.current.append(self)

        def __exit__(self, *_: object) -> None:
            self.current.pop()

        def do(self, what, *arguments) -> None:
            if self.captured is None:
                what(*arguments)
            else:
                self.captured.append((what, arguments))

        def only_plainly(self) -> None:
            if self.captured is not None:
                self.is_spoilt = True
                raise RuntimeError("cudaErrorStreamCaptureUnsupported")

        def synchronize(self) -> None:
            self.only_plainly()

        def begin_capture(self) -> None:
            assert self.captured is None
            self.captured, self.is_spoilt = [], False

        def end_capture(self) -> Graph:
            captured, self.captured = self.captured, None
            if self.is_spoilt:
                raise RuntimeError("cudaErrorStreamCaptureInvalidated")
            self.graphs.append(Graph(captured))
            return self.graphs[-1]

    Stream.device = device
    return Stream


@pytest.fixture
def cuda(device, monkeypatch):
    """kinetic.backends.gpu.cuda over such a CuPy."""

    stream = stream_of(device)

    def empty(size: int, kind: type) -> Array:
        assert kind is np.uint8
        if size > 1 << 40:
            raise TooMuch("Out of memory")
        return Array(stream, device.memory(size), 0, size)

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
            assert options == CUDA_OPTIONS and backend == "nvrtc"
            self.code = code

        def get_function(self, name: str):
            kernel = device.kernel(self.code, name)

            def launch(groups, lanes, arguments) -> None:
                memory = (value.memory if isinstance(value, Array) else value for value in arguments)
                stream.current[-1].do(device.launch, kernel, *groups, *lanes, *memory)

            return launch

    fake = ModuleType("cupy")
    fake.RawModule, fake.empty = RawModule, empty  # type: ignore[attr-defined]
    fake.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Device=Context,
        Stream=stream,
        alloc_pinned_memory=bytearray,
        memory=SimpleNamespace(OutOfMemoryError=TooMuch),
        runtime=SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda number: {"name": b"Toy"}),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "kinetic.backends.gpu.cuda", raising=False)
    module = importlib.import_module("kinetic.backends.gpu.cuda")
    module.streams = stream
    yield module
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


def decoded(program, count: int) -> list[np.ndarray]:
    return [program.run(Batch((5 + t,), (t,), (0,), (0,))) for t in range(count)]


@pytest.mark.parametrize("spoilt", ["", "begin_capture", "finish"])
def test_steps_are_a_graph(cuda, tmp_path, monkeypatch, spoilt):
    """From the second on; where they can't be captured they are run one by one, and no second capture is tried."""
    device = choosing.open_named("cuda:0")
    with open_model_file(WRITERS["floats"](tmp_path / "model.gguf")) as file:
        family = models.build(file.gguf, file.weights)
        ours, theirs = (b.load(family.forward, family.attention) for b in (GpuBackend(device), ReferenceBackend()))
        tried = []
        if spoilt == "begin_capture":

            def fail(stream) -> None:
                tried.append(stream)
                raise RuntimeError("cudaErrorNotSupported")

            monkeypatch.setattr(cuda.streams, spoilt, fail)
        elif spoilt:

            def spoil(*arguments: object) -> None:
                if cuda.streams.current and cuda.streams.current[0].captured is not None:
                    tried.append(arguments)
                    device.finish()
                launch(*arguments)

            launch = device.launch
            monkeypatch.setattr(device, "launch", spoil)
        for found, expected in zip(decoded(ours, 6), decoded(theirs, 6), strict=True):
            assert_same(found, expected)
        assert len(cuda.streams.graphs) == (not spoilt) and len(tried) == bool(spoilt)


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (
            "cudaErrorMemoryAllocation: out of memory",
            OutOfMemory,
            "CUDA device 'Toy' has no memory left: cudaErrorMemory",
        ),
        ("cudaErrorLaunchFailure: unspecified", KineticError, "CUDA device 'Toy' failed: cudaErrorLaunchFailure"),
    ],
)
def test_what_fails_is_said(cuda, said, kind, message):
    device = cuda.CudaDevice()

    def fail(*arguments: object) -> None:
        raise RuntimeError(said)

    with pytest.raises(kind, match=message):
        device.launch(fail, 1, 1)
    device._stream.synchronize = fail
    for ask in (device.finish, lambda: device.read(device.memory(4), np.zeros(1, np.int32))):
        with pytest.raises(kind, match=message):
            ask()


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
