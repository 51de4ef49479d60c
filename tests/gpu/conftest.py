"""An OpenCL device for the tests: PoCL runs kernels on the processor where there is no GPU."""

from __future__ import annotations

import pytest

from kinetic import models
from kinetic.backends import open_backend
from kinetic.errors import UsageError
from kinetic.loader import open_model_file
from tests.conftest import absent
from tests.support.backends import compile_all
from tests.support.whole_models import WRITERS


@pytest.fixture(scope="session")
def opencl():
    try:
        from kinetic.backends.gpu import opencl
    except UsageError as reason:
        absent("pocl", str(reason))
    return opencl


@pytest.fixture(scope="session")
def opencl_device(opencl):
    """What pyopencl calls a device: the first that offers the arithmetic."""
    lacks = {device: opencl.missing(device.single_fp_config) for device in opencl.devices()}
    usable = [device for device, missing in lacks.items() if not missing]
    if not usable:
        absent("pocl", f"no OpenCL device with the arithmetic, of {len(lacks)} here that lack {list(lacks.values())}")
    return usable[0]


@pytest.fixture(scope="session")
def device(opencl, opencl_device):
    """One that fails the self-test is an error, not a reason to skip. PoCL's memory is watched."""
    if "PoCL" not in opencl_device.version:
        return opencl.Device(opencl_device)
    from tests.support.watched_device import Watched

    return Watched(opencl_device)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def file(folder, request):
    """A tiny model by its name, for tests that take it as a parameter."""
    compile_all(open_backend("cpu").isa)
    path = folder / f"{request.param}.gguf"
    with open_model_file(path if path.exists() else WRITERS[request.param](path)) as found:
        yield found


@pytest.fixture
def family(folder, request):
    path = WRITERS[request.param](folder / f"{request.param}.gguf")
    with open_model_file(path) as file:
        yield models.build(file.gguf, file.weights)
