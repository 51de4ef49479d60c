"""The floating-point control word, for the host's own arithmetic.

Loading any library built with -ffast-math sets flush-to-zero for the whole
process; then NumPy's float32 answers change too. ``default_rounding`` saves
the environment of this thread, sets IEEE defaults (nearest even, subnormals
kept, no traps) and puts the old one back. Compiled kernels set their own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

_ENVIRONMENT_BYTES = 512  # larger than any fenv_t


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    name = {"win32": "ucrtbase", "darwin": "libSystem.dylib"}.get(sys.platform, "libm.so.6")
    try:
        library = ctypes.CDLL(name)
        library.fegetenv.argtypes = [ctypes.c_void_p]
        library.fesetenv.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library


def _default_environment(library: ctypes.CDLL) -> ctypes.c_void_p:
    """FE_DFL_ENV: on glibc the pointer -1, elsewhere the address of a variable."""
    try:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "_FE_DFL_ENV")))
    except ValueError:
        return ctypes.c_void_p(-1)


@contextmanager
def default_rounding() -> Iterator[None]:
    """Run the body under IEEE defaults; the caller's control word is restored, whatever happens."""
    library = _library()
    if library is None:
        yield
        return
    saved = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    library.fegetenv(saved)
    library.fesetenv(_default_environment(library))
    try:
        yield
    finally:
        library.fesetenv(saved)
