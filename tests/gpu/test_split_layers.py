"""How many layers a device gets: as asked, as many as fit, what it has kernels for; and what receipts say of it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import weakref
from types import ModuleType, SimpleNamespace

import pytest

from kinetic import models
from kinetic.api import Model
from kinetic.api.verify import Checker
from kinetic.backends import ALL, AUTO, gpu, open_backend
from kinetic.backends.cuts import find_cuts
from kinetic.backends.gpu import GpuBackend, choose, room
from kinetic.backends.gpu import program as program_module
from kinetic.backends.graph import trace
from kinetic.backends.split import SplitProgram
from kinetic.errors import OutOfMemory
from tests.support.backends import assert_same
from tests.support.split_models import OnReference, beside_cpu, load, rows, some_tokens
from tests.support.whole_models import WRITERS


@pytest.fixture
def family(file):
    return models.build(file.gguf, file.weights)


@pytest.mark.parametrize("file", ["gemma4"], indirect=True)
def test_numbers_of_layers(family):
    """The nearest smaller number where a cut is impossible, with a line; what follows the last layer counts as one."""
    for wanted, front, said in (
        (1, 6, ""), (2, 6, "can't be divided before its layer 5: the last 1 of 7 layers run on NumPy"),
        (5, 2, ""), (7, 0, ""), (99, 0, ""), (ALL, 0, ""), (AUTO, 0, ""),
    ):  # fmt: skip
        lines: list[str] = []
        backend = beside_cpu(OnReference(), wanted)
        load(backend, family, lines.append).close()
        assert backend.layers_in_front == front
        assert [line for line in lines if "compiling" not in line] == [line for line in lines if said and said in line]
        assert backend.device_class == ("cpu+reference" if front else "reference")


@pytest.mark.parametrize("file", ["llama"], indirect=True)
def test_as_many_as_fit(family):
    nodes, cuts = trace(family.forward), find_cuts(trace(family.forward))
    needs = [100 * (len(nodes) - (cuts.cuts[front].at if front else 0)) for front in range(cuts.layers)]
    for most, front in ((needs[0], 0), (needs[0] - 1, 1), (needs[2], 2), (99, 3)):
        lines: list[str] = []
        device = OnReference(most + 400)
        device.free_memory = lambda most=most: most  # type: ignore[method-assign]
        backend = beside_cpu(device, AUTO)
        program = load(backend, family, lines.append)
        assert backend.layers_in_front == front and device.loads == (front < 3)
        assert bool(lines) == bool(front) and (front < 3 or "the model runs on the CPU" in lines[-1])
        assert backend.device_class == ("reference", "cpu+reference", "cpu+reference", "cpu")[front]
        program.close()


@pytest.mark.parametrize("file", ["llama"], indirect=True)
def test_out_of_memory_falls_back(family):
    lines: list[str] = []
    device = OnReference(room=700)
    backend = beside_cpu(device, ALL)
    program = load(backend, family, lines.append)
    tokens = some_tokens(family)
    assert backend.device_class == "cpu+reference" and device.loads > 1
    assert lines[0].startswith("the toy has no memory for more: the last 2 of 3 layers run on NumPy")
    assert_same(program.run(rows(tokens, 0)), load(open_backend("cpu", threads=1), family).run(rows(tokens, 0)))
    lines.clear()
    backend = beside_cpu(OnReference(room=1), ALL)
    assert not isinstance(load(backend, family, lines.append), SplitProgram)
    assert backend.device_class == "cpu" and lines[-1] == "the toy has no memory for more: the model runs on the CPU"


@pytest.fixture
def uncollected():
    """Nothing is given back by chance."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def small(opencl, device):
    """The device, with a limit to what may be there at once; ``live`` is what is there."""

    class Counted(opencl.cl.Buffer):  # of which there may be weak references
        pass

    class Small(opencl.Device):
        limit, live = 1 << 40, 0

        def memory(self, size):
            if self.live + size > self.limit:
                raise OutOfMemory(f"OpenCL device '{self.name}' has no memory for {size} bytes more")
            self.allocations = getattr(self, "allocations", 0) + 1  # what is recorded asks for it
            found = Counted(self._context, opencl.cl.mem_flags.READ_WRITE, max(size, 1))
            self.live += size
            weakref.finalize(found, self.gone, size)
            return found

        def gone(self, size):
            self.live -= size

    found = object.__new__(Small)
    found.__dict__.update(vars(device))
    return found


@pytest.mark.parametrize("file", ["llama"], indirect=True)
def test_nothing_half_loaded_stays(small, family, uncollected):
    """On the device itself: what it held before it had no memory left is given back."""
    program = load(GpuBackend(small), family)
    whole = small.live
    program.close()
    del program
    gc.collect()
    assert whole and small.live == 0
    small.limit = whole - 1
    lines: list[str] = []
    backend = beside_cpu(GpuBackend(small), ALL)
    program = load(backend, family, lines.append)
    assert "has no memory" in lines[0] and backend.device_class == "cpu+opencl" and 0 < small.live <= whole * 3 // 4
    program.close()
    del program
    gc.collect()
    assert small.live == 0
    small.limit = 10
    load(backend, family, lines.append).close()
    gc.collect()
    assert backend.device_class == "cpu" and small.live == 0


@pytest.mark.parametrize("file", ["llama", "qwen35"], indirect=True)
def test_the_estimate_is_no_less_than_what_is_taken(small, family, monkeypatch):
    """Of weights, and of all that passes take."""
    monkeypatch.setattr("kinetic.backends.gpu.attention.PARTIAL_BYTES", 1 << 16)
    monkeypatch.setattr(room, "PARTIALS", 1 << 16)
    backend, nodes = GpuBackend(small), trace(family.forward)
    program = load(backend, family)
    loaded = small.live
    assert 0 < loaded <= 1.01 * room.weight_bytes(nodes)
    program.run(rows(some_tokens(family, 100), 0))
    passing = room.cache_bytes(family.attention, 100) + room.pass_bytes(nodes, 100)
    assert passing / 6 < small.live - loaded <= passing
    whole = backend.needed_memory(nodes, family.attention, family.states, 100)
    assert whole >= room.weight_bytes(nodes) + passing
    assert backend.needed_memory(nodes, family.attention, family.states, 20000) > whole
    program.close()


@pytest.mark.parametrize("file", ["gemma4"], indirect=True)
def test_layers_without_kernels_stay(family):
    lines: list[str] = []
    backend = beside_cpu(OnReference(lacking="route"), ALL)
    load(backend, family, lines.append).close()
    nodes = trace(family.forward)
    last = max(i for i, node in enumerate(nodes) if node.op == "route")
    assert find_cuts(nodes).cuts[backend.layers_in_front].at > last
    assert lines[0].startswith("there are no kernels for route on reference devices: the last ")
    backend = beside_cpu(OnReference(lacking="outputs"), 2)
    load(backend, family, lines.append).close()
    assert backend.device_class == "cpu" and lines[-1].endswith(
        "outputs on reference devices: the model runs on the CPU"
    )


def test_what_devices_say_of_themselves(device, opencl, monkeypatch):
    """Their names, and what memory is left; CUDA's counts what CuPy keeps."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "kinetic.backends.gpu.cuda", raising=False)
    names = [(f"opencl:{number}", found.name) for number, found in enumerate(opencl.devices())]
    assert device.free_memory() > 1 << 20 and choose.listed() == names != []
    fake, runtime = ModuleType("cupy"), SimpleNamespace(memGetInfo=lambda: (5, 9), getDeviceCount=lambda: 1)
    runtime.getDeviceProperties = lambda number: {"name": b"Toy"}
    fake.cuda = SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]
    fake.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 3)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", fake)
    cuda = importlib.import_module("kinetic.backends.gpu.cuda")
    try:
        toy = object.__new__(cuda.CudaDevice)
        toy._device = contextlib.nullcontext()
        assert toy.free_memory() == 8 and choose.listed() == [("cuda:0", "Toy"), *names]
        runtime.getDeviceCount = lambda: 1 / 0
        assert choose.listed() == names
    finally:
        sys.modules.pop("kinetic.backends.gpu.cuda", None)
        vars(gpu).pop("cuda", None)


# ---- models of the API


@pytest.mark.parametrize(("here", "there"), [("opencl", "cpu"), ("cpu", "opencl")])
def test_receipts_of_a_split_model(device, folder, tmp_path, here, there):
    path = WRITERS["floats"](folder / "receipt.gguf")
    layers = {"opencl": 2, "cpu": "auto"}
    with Model(path, device=here, gpu_layers=layers[here], pack_cache=False) as model:
        assert model.device == here
        answer = model.generate("one", raw=True, max_tokens=5, seed=3, commit_logits=True)
        answer.save_receipt(tmp_path / "receipt.json")
    claims = answer.receipt()["claims"]
    assert claims["device_class"] == {"opencl": "cpu+opencl", "cpu": "cpu"}[here]
    if here == "opencl":
        assert "cpu:" in claims["engine_id"] and "+opencl:" in claims["engine_id"] and " 2 of " in claims["device_name"]
    with Checker(path, device=there, gpu_layers=layers[there], pack_cache=False) as checker:
        assert checker.verify(tmp_path / "receipt.json").exit_code == 0


def test_what_a_device_has_no_kernels_for_the_cpu_does(device, folder, monkeypatch):
    path = WRITERS["floats"](folder / "fallback.gguf")
    monkeypatch.setattr(program_module, "OPS", program_module.OPS - {"outputs"})
    lines: list[str] = []
    with Model(path, device="opencl", pack_cache=False, progress=lines.append) as model:
        assert model.device == "cpu"
    assert [line for line in lines if line.startswith("there are no kernels for outputs on opencl devices: ")]


def test_no_layers_need_no_device(folder):
    path = WRITERS["floats"](folder / "none.gguf")
    with Model(path, device="cuda:9", gpu_layers=0, pack_cache=False) as model:
        assert model.device == "cpu"
