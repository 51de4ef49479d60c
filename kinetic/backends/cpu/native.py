"""Finds, builds and loads the compiled kernels. A warm start loads object files and never imports Numba.

The cache folder is named by a digest of every kernel source, the compiler's
versions and the processor's features, so nothing stale can be loaded. The
engine id which a receipt records is made from it (backends/identity.py).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.metadata
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from kinetic import backends, formats
from kinetic.backends.cpu import objects, target
from kinetic.backends.cpu.system import forget_code
from kinetic.backends.cpu.tiles import tile_name
from kinetic.backends.identity import digest_of
from kinetic.errors import KineticError
from kinetic.formats import Format, by_type

CACHE_ENVIRONMENT = "KINETIC_KERNELS"
"""Folder for compiled kernels; set by the program from the user's state folder."""

_lock = threading.Lock()


COMMON_UNITS = ("core", "attention")
"""Units that every model needs (build.py); the others are formats."""

KERNEL_SOURCES = (
    "activation_rows attention bounds build codes compiled control core core_attention core_candidates core_delta "
    "core_experts core_ops core_recurrent core_routes core_scan core_shortlist core_work delta_rows dots emitted "
    "expert_fields float_tiles functions halves ir layout objects packing rows scan tape target tiles"
).split()
"""Modules of this package that end up in object files. ``test_native`` checks that none is forgotten."""


@lru_cache(maxsize=8)
def kernel_digest(isa: str) -> str:
    """BLAKE3 of all that can change a compiled kernel: the name of its cache folder."""
    here = Path(backends.__file__).parent
    sources = [here / "cpu" / f"{name}.py" for name in KERNEL_SOURCES]
    sources += [here / "base.py", *(here / "reference" / f"{name}.py" for name in ("functions", "quantise", "scan"))]
    sources.append(here.parent / "bits.py")
    sources += sorted(Path(formats.__file__).parent.glob("*.py"))
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    facts = (isa, *versions, sys.platform, platform.machine(), platform.python_version(), *target.processor(isa))
    return digest_of(sources, facts)


def cache_folder(isa: str) -> Path:
    """Where the object files of these kernels lie."""
    return folder_of(kernel_digest(isa))


def folder_of(digest: str) -> Path:
    """Where a digest's object files lie. A temporary folder if the cache can't be written."""
    base = os.environ.get(CACHE_ENVIRONMENT)
    root = Path(base) if base else Path.home() / ".cache" / "kinetic" / "kernels"
    folder = root / digest[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary_folder(digest[:32])


@lru_cache(maxsize=8)
def _temporary_folder(name: str) -> Path:
    """This user's folder below the system's temporary one, found again by later runs; else one until exit."""
    path = Path(tempfile.gettempdir()) / f"kinetic-{os.getuid()}-{name}"
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        # Code is loaded from there, so nobody else may own it or write to it.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return path
    fresh = tempfile.mkdtemp(prefix="kinetic-")
    atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    return Path(fresh)


class Kernels:
    """The kernels for an instruction set and some formats, as callable C functions and tile addresses."""

    def __init__(self, isa: str, types: Iterable[int], progress: Callable[[str], None] | None = None) -> None:
        self.isa = isa
        folder = cache_folder(isa)
        units = [*COMMON_UNITS, *(str(t) for t in sorted(types))]
        with _lock:
            missing = [unit for unit in units if objects.read(folder / f"{unit}.o") is None]
            build_missing(folder, isa, missing, progress)
            self._engine = load(folder, isa, units)
        self.start = self._function("start", 1)
        self.run_tape = self._function("run_tape", 3)
        self.work = self._function("work", 4)
        self.candidates = self._function("candidates", 7)
        self.shrink = self._function("shrink", 8)
        self.leave_rest = self._function("leave_rest", 9)
        self.exp_row = self._function("exp_row", 3)
        forget_code("libllvmlite")  # 30 MB, and nothing is compiled or linked from now on

    def _function(self, name: str, arity: int) -> Callable[..., None]:
        address = self.address(name)
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arity)(address)

    def address(self, name: str) -> int:
        address = int(self._engine.get_function_address(name))
        if not address:
            raise KineticError(f"kernel '{name}' is missing from the compiled cache; delete it and run again")
        return address

    def tile(self, fmt: Format, kind: str) -> int:
        """Address of a tile kernel: ``tiles.ONE``, ``TWO`` or ``MANY``, behind the ``suffix`` of a ``tiles.Stream``."""
        return self.address(tile_name(fmt, kind))

    def pack(self, fmt: Format) -> Callable[..., None]:
        return self._function(f"pack_{fmt.NAME.lower()}", 7)


def load(folder: Path, isa: str, units: list[str]) -> llvm.ExecutionEngine:
    """The object files of ``units``, linked."""
    target.initialise()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.machine(isa))
    for unit in units:
        code = objects.read(folder / f"{unit}.o")
        if code is None:
            raise KineticError(f"the compiled kernels in {folder} can't be read back; delete that folder and run again")
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def build_missing(folder: Path, isa: str, units: list[str], progress: Callable[[str], None] | None) -> None:
    """Compile units in two processes beside each other: the interpreter in one, all else in another."""
    if not units:
        return
    names = [u if u in COMMON_UNITS else by_type(int(u), "?").NAME for u in units]
    if progress:
        progress(f"compiling kernels for this processor ({isa}: {', '.join(names)}); this happens once")
    jobs = [job for job in (["core"] if "core" in units else [], [u for u in units if u != "core"]) if job]
    finish([_start(folder, isa, job) for job in jobs])


def finish(running: list[subprocess.Popen[str]]) -> None:
    """Wait for processes that compile."""
    for process in running:
        _, errors = process.communicate()
        if process.returncode != 0:
            raise KineticError(
                f"compiling the kernels failed (exit {process.returncode}): {_last_line(errors)}", name="COMPILE_FAILED"
            )


def _start(folder: Path, isa: str, units: list[str]) -> subprocess.Popen[str]:
    return start("kinetic.backends.cpu.build", folder, isa, units)


def start(module: str, folder: Path, isa: str, units: list[str]) -> subprocess.Popen[str]:
    """A process that compiles ``units`` into ``folder``; ``module`` is what it runs."""
    command = [sys.executable, "-m", module, isa, str(folder), *units]
    # What Numba itself makes is thrown away, so it need not optimise.
    environment = os.environ | {"NUMBA_OPT": "0", "NUMBA_DISABLE_JIT": "0", "PYTHONPATH": _python_path()}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _python_path() -> str:
    """The folder this package was imported from comes first, installed or not."""
    here = str(Path(backends.__file__).parents[2])
    return os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
