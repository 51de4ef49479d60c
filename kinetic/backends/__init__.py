"""Backends: each computes the operations of ``base.Ops`` with the bits that ``reference`` defines."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.backends.base import Backend

NAMES = ("cpu", "reference")
"""Those that every machine has."""

DEVICES = re.compile(r"(?:opencl|cuda)(?::\d{1,3})?", re.ASCII)


def known(name: str) -> bool:
    """Whether there is a backend of this name, on some machine."""
    return name in NAMES or DEVICES.fullmatch(name) is not None


def open_backend(name: str, *, threads: int = 0) -> Backend:
    """The backend called ``name``: 'cpu', 'reference', 'opencl', 'opencl:N', 'cuda' or 'cuda:N'.

    ``threads`` 0 lets the backend choose; it never changes a bit. Raises UsageError, also where a device isn't there
    or computes other bits than the reference.
    """
    if not known(name):
        choices = ", ".join((*NAMES, "opencl[:N]", "cuda[:N]"))
        raise UsageError(f"unknown device '{name}'; choose one of: {choices}", name="UNKNOWN_DEVICE")
    if name in NAMES:
        backend: Backend = importlib.import_module(f"kinetic.backends.{name}").open_backend(threads=threads)
    else:
        backend = importlib.import_module("kinetic.backends.gpu").open_backend(name)
    return backend


def others_than(device: str) -> list[str]:
    """Devices whose bits are compared with those of this one, here or not: CUDA only where CuPy is installed."""
    if device == "cpu":
        return ["opencl", "cuda"] if find_spec("cupy") else ["opencl"]
    return [] if device == "reference" else ["cpu"]
