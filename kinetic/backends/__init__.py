"""Backends: each computes the operations of ``base.Ops`` with the bits that ``reference`` defines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.backends.base import Backend

NAMES = ("cpu", "reference")


def open_backend(name: str, *, threads: int = 0) -> Backend:
    """The backend called ``name``. ``threads`` 0 lets the backend choose; it never changes a bit."""
    if name not in NAMES:
        raise UsageError(f"unknown device '{name}'; choose one of: {', '.join(NAMES)}", name="UNKNOWN_DEVICE")
    backend: Backend = importlib.import_module(f"kinetic.backends.{name}").open_backend(threads=threads)
    return backend
