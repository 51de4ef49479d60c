"""Which device a name means, and which one is best where none is named."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kinetic.backends.gpu.device import Device
from kinetic.errors import KineticError, UsageError


def open_named(name: str) -> Device:
    """'opencl' is the first usable device, GPUs before others; 'cuda' is the first. Raises UsageError."""
    kind, _, number = name.partition(":")
    if kind == "cuda":
        from kinetic.backends.gpu import cuda

        return cuda.CudaDevice(int(number or 0))
    from kinetic.backends.gpu import opencl

    return opencl.numbered(int(number)) if number else opencl.open_device()


def best(progress: Callable[[str], None] | None = None) -> str:
    """'cuda', 'opencl:N' of a GPU, or 'cpu'; ``progress`` is told of each that is passed over, and why."""
    tell = progress or (lambda line: None)
    try:
        open_named("cuda")
        return "cuda"
    except KineticError as reason:
        tell(f"cuda is passed over: {reason}")
    try:
        from kinetic.backends.gpu import opencl

        graphics = opencl.graphics()
        if not graphics:
            raise UsageError("there is no GPU among the OpenCL devices of this machine")
        opencl.open_device(graphics[:1])
        return f"opencl:{opencl.devices().index(graphics[0])}"
    except KineticError as reason:
        tell(f"opencl is passed over: {reason}")
    return "cpu"


def listed() -> list[tuple[str, str]]:
    """What ``open_named`` calls each device of this machine, usable or not, and its own name."""
    found: list[tuple[str, str]] = []
    with contextlib.suppress(KineticError):  # CuPy is not installed
        from kinetic.backends.gpu import cuda

        found += [(f"cuda:{number}", name) for number, name in enumerate(cuda.names())]
    with contextlib.suppress(KineticError):
        from kinetic.backends.gpu import opencl

        found += [(f"opencl:{number}", str(device.name)) for number, device in enumerate(opencl.devices())]
    return found


def is_graphics(name: str) -> bool:
    """Whether a device that can be opened by this name is a GPU."""
    if name.startswith("cuda"):
        return True
    from kinetic.backends.gpu import opencl

    graphics = [opencl.devices().index(device) for device in opencl.graphics()]
    number = name.partition(":")[2]
    return int(number) in graphics if number else bool(graphics)
