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
def device(opencl):
    """A device that offers the arithmetic; one that then fails the self-test is an error, not a reason to skip."""
    lacks = {device: opencl.missing(device.single_fp_config) for device in opencl.devices()}
    usable = [device for device, missing in lacks.items() if not missing]
    if not usable:
        absent("pocl", f"no OpenCL device with the arithmetic, of {len(lacks)} here that lack {list(lacks.values())}")
    return opencl.Device(usable[0])
