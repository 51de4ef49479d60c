"""An OpenCL device for the tests: PoCL runs kernels on the processor where there is no GPU."""

from __future__ import annotations

import pytest

from kinetic.errors import UsageError
from tests.conftest import absent


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
