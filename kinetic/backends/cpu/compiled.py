"""How Numba functions become kernels, and what all of them share. Imported only by the build process.

Arguments named ``p`` are the address of the program table, ``i`` that of an
instruction; ``field(i, n)`` is its n-th word, listed in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba import types as nt

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.emitted import extern, field

TILE_ROWS = 16
CHUNK = 256

KERNELS: dict[str, tuple[Any, str]] = {}
"""Compiled functions by name, with their result kind, for ``build`` to turn into C functions."""

BARE = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of every kernel: no Python object, no exception, no wrapper."""


def inline(function: Callable[..., Any]) -> Any:
    """A small function, compiled into its callers. Without a signature Numba makes a version for every constant."""
    return njit((nt.int64,) * function.__code__.co_argcount, **BARE)(function)


def kernel(function: Callable[..., Any], result: str = "v") -> Any:
    """A C function of int64 arguments. Callers get a plain call of its symbol, so each is compiled just once."""
    if function.__name__ in KERNELS:
        raise NameError(f"two kernels are named '{function.__name__}': they are C functions of one program")
    KERNELS[function.__name__] = (inline(function), result)
    return extern(function.__name__, "a" * function.__code__.co_argcount, result)


def value_kernel(function: Callable[..., Any]) -> Any:
    """A ``kernel`` that returns an int64."""
    return kernel(function, "a")


@inline
def share(total, thread, threads):
    """First and last + 1 of the units that ``thread`` owns."""
    return total * thread // threads, total * (thread + 1) // threads


@inline
def rows_of(p, i):
    """Field 1 of every instruction: 0 for all rows of the batch, 1 for the output rows."""
    return field(p, tape.OUTPUT_ROWS) if field(i, 1) == 1 else field(p, tape.ROWS)
