"""Rows of float32 to blocks of a weight format, bit-equal to ggml's reference quantisers of llama.cpp b11434.

Compiled like the other kernels: by a process of its own, into sealed object files in a folder that is named by
a digest of all that can change them. No answer depends on them, so they lie in a folder of their own: every
module beside the engine's kernels is part of the engine id.

All arithmetic is IEEE float32 in ggml's order, nothing fused, so that every instruction set makes the same bytes.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinetic import gguf_types
from kinetic.backends.cpu import native, objects, target
from kinetic.backends.cpu.quantise import lattice_tables
from kinetic.backends.identity import digest_of
from kinetic.bits import F32
from kinetic.errors import KineticError

QUANTISABLE = frozenset({2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 34, 35, 39, 40, 41, 42, *lattice_tables.LATTICES})
"""ggml type ids of the formats that rows can be quantised to."""

NEEDS_IMATRIX = frozenset({16, 17, 19})
"""Those of them that need an importance."""

TASK = 1 << 17
"""Values that a thread takes at a time: enough that the call does not matter, few enough that threads end together."""

_SHARED = "build compiled control emitted ir objects tape target".split()
"""Modules of the folder above that have a part in what is compiled here."""

_lock = threading.Lock()


@lru_cache(maxsize=8)
def kernel_digest(isa: str) -> str:
    """BLAKE3 of all that can change a compiled kernel: the name of its cache folder."""
    here = Path(__file__).parent
    sources = sorted(here.glob("*.py")) + [here.parent / f"{name}.py" for name in _SHARED]
    sources.append(Path(gguf_types.__file__))
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    facts = ("quantise", isa, *versions, sys.platform, platform.machine(), platform.python_version())
    return digest_of(sources, (*facts, *target.processor(isa)))


class Quantisers:
    """The kernels of some formats, compiled if they are not yet."""

    def __init__(self, types: Iterable[int], progress: Callable[[str], None] | None = None) -> None:
        isa = target.choose()
        units = [str(t) for t in sorted(set(types))]
        folder = native.folder_of(kernel_digest(isa))
        with _lock:
            missing = [unit for unit in units if objects.read(folder / f"{unit}.o") is None]
            if missing:
                _compile(folder, isa, missing, progress)
            self._engine = native.load(folder, isa, units)
            for unit in units:
                # Kept from here on: threads that each made a table would hand addresses of one that is freed.
                lattice_tables.record(int(unit))
        self._kernels = {int(unit): self._function(int(unit)) for unit in units}

    def _function(self, ggml_type: int) -> Callable[..., None]:
        name = symbol(ggml_type)
        address = int(self._engine.get_function_address(name))
        if not address:
            raise KineticError(f"kernel '{name}' is missing from the compiled cache; delete it and run again")
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(address)

    def rows(self, ggml_type: int, source: F32, importance: F32 | None, threads: int = 1) -> NDArray[np.uint8]:
        """source float32 [N, K], importance float32 [K] or None -> uint8 [N, bytes of a row].

        K is a multiple of the format's block. The bytes don't depend on ``threads``, nor a row's on the others.
        Of values or importances that are not finite, the bytes may be others than ggml's; they are the same every time.
        """
        _, block, size = gguf_types.TYPES[ggml_type]
        count, width = source.shape
        if width % block or (importance is not None and importance.shape != (width,)):
            raise ValueError(f"rows of {width} values don't fit blocks of {block} or their importance")
        if importance is None and ggml_type in NEEDS_IMATRIX:
            raise ValueError(f"type {ggml_type} needs an importance")
        source = np.ascontiguousarray(source, np.float32)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        made = np.empty((count, width // block * size), np.uint8)
        kernel, weights_at = self._kernels[ggml_type], 0 if weights is None else weights.ctypes.data
        tables = lattice_tables.record(ggml_type)

        def run(first: int) -> None:
            part, target_part = source[first : first + step], made[first : first + step]
            kernel(part.ctypes.data, weights_at, target_part.ctypes.data, len(part), width, tables.ctypes.data)

        step = max(1, TASK // max(1, width))
        if threads == 1:
            for first in range(0, count, step):
                run(first)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, range(0, count, step)))
        lattice_tables.check(tables, ggml_type)
        return made


def symbol(ggml_type: int) -> str:
    """The C function of a format: (source, importance or 0, target, rows, width, tables or 0)."""
    return f"quantise_{gguf_types.type_name(ggml_type).lower()}"


def _compile(folder: Path, isa: str, units: list[str], progress: Callable[[str], None] | None) -> None:
    if progress:
        names = ", ".join(gguf_types.type_name(int(unit)) for unit in units)
        progress(f"compiling quantisers for this processor ({isa}: {names}); this happens once")
    jobs = [job for job in (units[::2], units[1::2]) if job]
    native.finish([native.start("kinetic.backends.cpu.quantise.build", folder, isa, job) for job in jobs])
