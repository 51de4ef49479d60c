"""Modules found by lying in a folder, so that whoever adds one changes no list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(package: str) -> Iterator[tuple[str, ModuleType]]:
    """Name and module of everything in a package, in the order of the names."""
    path = importlib.import_module(package).__path__
    for name in sorted(info.name for info in pkgutil.iter_modules(path)):
        yield name, importlib.import_module(f"{package}.{name}")
