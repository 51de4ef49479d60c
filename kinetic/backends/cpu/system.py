"""Everything that asks the operating system: how many processors there are, and how to give one away.

All of it is optional. Without it a waiting thread spins, and every processor is assumed to be ours.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from pathlib import Path

PORTABLE_ENVIRONMENT = "KINETIC_PORTABLE_WAIT"
"""Set to 1 to do without the system's yield, as on a system that has none."""


def yield_address() -> int:
    """Address of a C function without arguments that lets another thread run, or 0."""
    if os.environ.get(PORTABLE_ENVIRONMENT) == "1":
        return 0
    try:
        if sys.platform == "win32":
            function = ctypes.WinDLL("kernel32").SwitchToThread
        else:
            function = ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def forget_code(library: str) -> None:
    """Take the code of a library with this in its path out of memory; code that runs again is read again."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, UnicodeDecodeError):
        return
    for line in lines:
        place, rights, *_, path = line.split(maxsplit=5)
        if rights == "r-xp" and library in path:  # nothing was ever written there
            begin, end = (int(edge, 16) for edge in place.split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def available_cores() -> int:
    """Processors this process may use: its affinity, cut by the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, min(cores, _physical_cores()))


def _physical_cores() -> int:
    """Cores, not hardware threads: two threads of a core share its arithmetic units."""
    try:
        pairs = {
            (path.parent / "physical_package_id").read_text() + ":" + path.read_text()
            for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_id")
        }
    except OSError:
        return 1 << 16
    return len(pairs) or 1 << 16


def processor_name() -> str:
    """The processor's own name, for display only."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
