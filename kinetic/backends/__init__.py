"""Backends: each computes the operations of ``base.Ops`` with the bits that ``reference`` defines."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.backends.base import Backend

NAMES = ("cpu", "reference")
"""Those that every machine has."""

DEVICES = re.compile(r"(?:opencl|cuda)(?::\d{1,3})?", re.ASCII)

AUTO, ALL = -2, -1
"""Numbers of layers on a device: as many as fit into its memory, and every one."""


LAYERS = re.compile(r"-1|\d{1,9}", re.ASCII)


def layer_count(layers: int | str, flag: str = "gpu-layers") -> int:
    """What somebody wrote as a number of layers: one, 'all' or -1, 'auto'. Raises UsageError that names the flag."""
    named = {"auto": AUTO, "all": ALL}.get(str(layers))
    if named is not None:
        return named
    if isinstance(layers, bool) or not LAYERS.fullmatch(str(layers)):
        message = f"--{flag} is {str(layers)[:40]!r}, but must be a number of layers, all, or auto"
        raise UsageError(message, name=f"BAD_{flag.upper().replace('-', '_')}")
    return int(layers)


def known(name: str) -> bool:
    """Whether there is a backend of this name, on some machine."""
    return name in NAMES or DEVICES.fullmatch(name) is not None


def open_backend(
    name: str,
    *,
    threads: int = 0,
    gpu_layers: int | None = None,
    context: int = 0,
    cpu_moe: int = 0,
    clock: Callable[[], float] | None = None,
) -> Backend:
    """The backend called ``name``: 'cpu', 'reference', 'opencl', 'opencl:N', 'cuda' or 'cuda:N'.

    ``threads`` 0 lets the backend choose; it never changes a bit. With ``gpu_layers`` a device takes so many layers of
    a model, AUTO or ALL, and the CPU the others and what the device can't take (``split``); without, the device takes
    the whole or refuses it. ``context`` is then the most positions that a sequence will have. Of the first ``cpu_moe``
    layers, ALL, or AUTO where not all fit, a device has some experts at a time; ``clock`` tells in seconds whether a
    missing one is copied or computed by the CPU. Raises UsageError, also where a device isn't there or computes other
    bits than the reference.
    """
    if not known(name):
        choices = ", ".join((*NAMES, "opencl[:N]", "cuda[:N]"))
        raise UsageError(f"unknown device '{name}'; choose one of: {choices}", name="UNKNOWN_DEVICE")
    backend: Backend
    if name in NAMES:
        backend = importlib.import_module(f"kinetic.backends.{name}").open_backend(threads=threads)
    else:
        options = {"threads": threads, "context": context, "cpu_moe": cpu_moe, "clock": clock}
        if gpu_layers is None:
            backend = importlib.import_module("kinetic.backends.gpu").open_backend(name, **options)
        else:
            split = importlib.import_module("kinetic.backends.split")
            backend = split.open_backend(name, gpu_layers=gpu_layers, **options)
    return backend


def others_than(device: str) -> list[str]:
    """Devices whose bits are compared with those of this one, here or not: CUDA only where CuPy is installed."""
    if device == "cpu":
        return ["opencl", "cuda"] if find_spec("cupy") else ["opencl"]
    return [] if device == "reference" else ["cpu"]
