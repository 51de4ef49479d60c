"""Facts of this machine: processor, cores and what a container leaves of them, caches, memory, load, GPUs.

Reads /proc and /sys on Linux and asks ``sysctl`` on macOS; needs nothing but the standard
library, so it is quick. What can't be found out is None, "", or an empty tuple.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")
"""Where /proc and /sys begin."""

FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16",
    "amx_int8": "AMX int8",
    "asimd": "NEON",
    "asimddp": "dot product",
    "i8mm": "i8mm",
    "sve": "SVE",
}
"""Flags of /proc/cpuinfo that matter to kernels, and how people write them."""

UNLIMITED = 1 << 60
"""Bytes: a control group with a higher limit has none."""

SECONDS = 5
"""How long a program that is asked for facts may take."""


class Cache(NamedTuple):
    """One level of caches. ``size`` is bytes of one of them, ``copies`` how many there are."""

    level: int
    kind: str
    size: int
    copies: int


class Gpu(NamedTuple):
    name: str
    memory: int | None
    """Bytes."""
    driver: str


class Machine(NamedTuple):
    """Memory is in bytes; ``quota`` is how many processors' time the control groups allow."""

    system: str
    architecture: str
    processor: str
    cores: int
    """Logical processors, whoever may use them."""
    usable: int
    """Logical processors that this process may run on."""
    physical: int | None
    quota: float | None
    memory: int | None
    """What the machine has, or less where control groups allow less."""
    free: int | None
    """What could be had now without swapping."""
    caches: tuple[Cache, ...]
    features: tuple[str, ...]
    load: float | None
    """Processes that wanted to run, averaged over the last minute."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"caches": [cache._asdict() for cache in self.caches], "features": [*self.features]}


def describe(root: Path = ROOT) -> Machine:
    """This machine, in a few milliseconds."""
    asked = _sysctl() if sys.platform == "darwin" else {}
    info = _cpuinfo(root)
    total, free = _memory(root)
    return Machine(
        system=f"{platform.system()} {platform.release()}".strip(),
        architecture=platform.machine(),
        processor=info.get("model name") or asked.get("machdep.cpu.brand_string") or _plain_processor(),
        cores=os.cpu_count() or 1,
        usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        physical=_physical(root) or _whole(asked.get("hw.physicalcpu", "")),
        quota=_quota(root),
        memory=total if total is not None else _whole(asked.get("hw.memsize", "")),
        free=free,
        caches=tuple(_caches(root)),
        features=_features(info),
        load=_load(),
    )


def _read(path: Path) -> str:
    """Text of a small file, "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _sysctl() -> dict[str, str]:
    """macOS's own answers."""
    names = ("machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize")
    lines = _answer("sysctl", *names).splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _answer(*command: str) -> str:
    """What a program prints, or "" if it isn't there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout


# --- processor ---


def _cpuinfo(root: Path) -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor."""
    first = _read(root / "proc/cpuinfo").split("\n\n", 1)[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def _plain_processor() -> str:
    return platform.processor() or platform.machine()


def _features(info: dict[str, str]) -> tuple[str, ...]:
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return tuple(name for flag, name in FEATURES.items() if flag in flags)


def _physical(root: Path) -> int | None:
    """Cores of all sockets, not hardware threads."""
    cores = set()
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_id"):
        cores.add((_read(path.with_name("physical_package_id")), _read(path)))
    return len(cores) or None


def _caches(root: Path) -> Iterator[Cache]:
    """By level; a cache that several processors share counts once."""
    found: dict[tuple[int, str, int], set[str]] = {}
    for index in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = _whole(_read(index / "level")), _size(_read(index / "size"))
        if level is not None and size is not None:
            key = (level, _read(index / "type").lower(), size)
            found.setdefault(key, set()).add(_read(index / "shared_cpu_list") or str(index))
    for (level, kind, size), shared in sorted(found.items()):
        yield Cache(level, kind, size, len(shared))


def _size(text: str) -> int | None:
    """Bytes of "32K", "1M" or "4096"."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = _whole(text if factor == 1 else text[:-1])
    return None if number is None else number * factor


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


# --- control groups ---


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders that may limit this process: its own control group and those around it, of either version."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = (line.split(":", 2) + ["", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = base / name.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder == base or base in folder.parents)


def _quota(root: Path) -> float | None:
    """The least quota of the groups around this process, in processors."""
    found = []
    for group in _groups(root, "cpu"):
        whole = _read(group / "cpu.max") or f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        quota, period = (_whole(word) for word in (whole.split() + ["", ""])[:2])
        if quota and period:
            found.append(quota / period)
    return min(found, default=None)


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Total and free bytes: the machine's, cut by the control groups around this process."""
    info = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    totals, frees = ([_kibibytes(info.get(name, ""))] for name in ("MemTotal", "MemAvailable"))
    for group in _groups(root, "memory"):
        limit = _whole(_read(group / "memory.max") or _read(group / "memory.limit_in_bytes"))
        used = _whole(_read(group / "memory.current") or _read(group / "memory.usage_in_bytes"))
        if limit is not None and limit < UNLIMITED:
            totals.append(limit)
            frees.append(None if used is None else max(0, limit - used + _reclaimable(group)))
    return _least(totals), _least(frees)


def _least(sizes: list[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _reclaimable(group: Path) -> int:
    """Bytes of files that the kernel would give up before it refuses memory."""
    lines = (line.split() for line in _read(group / "memory.stat").splitlines())
    counts = {words[0]: _whole(words[1]) for words in lines if len(words) == 2}
    return counts.get("total_inactive_file") or counts.get("inactive_file") or 0


def _kibibytes(text: str) -> int | None:
    number = _whole(text.removesuffix("kB").strip())
    return None if number is None else number << 10


# --- memory bandwidth ---

PIECE = 256 << 20
"""Bytes read for one measurement, if there is that much; several times a processor's caches."""


def read_bandwidth(threads: int, size: int = PIECE, rounds: int = 5) -> float | None:
    """Bytes a second that ``threads`` read from memory together, the best of ``rounds``; None if it can't be measured.

    The loop is the C library's search for a byte that isn't there, which uses the widest instructions.
    """
    import ctypes
    import mmap
    import time
    from concurrent.futures import ThreadPoolExecutor

    try:
        search = ctypes.CDLL(None).memchr
        # What could be shared with others gets small pages by default, and is read more slowly.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
        memory = mmap.mmap(-1, size, **private)
    except (OSError, AttributeError, TypeError, ValueError):
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    search.restype, search.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    view = ctypes.c_char.from_buffer(memory)
    start, part = ctypes.addressof(view), size // threads
    ctypes.memset(start, 1, size)  # memory never written to is one page of zeros
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            begin = time.perf_counter()
            list(pool.map(lambda i: search(start + i * part, 0, part), range(threads)))
            times.append(time.perf_counter() - begin)
    del view  # a mapping with a pointer into it can't be closed
    memory.close()
    return part * threads / min(times)


# --- GPUs ---


def gpus(root: Path = ROOT) -> tuple[Gpu, ...]:
    """Graphics processors whose drivers are loaded; asks ``nvidia-smi``, which takes a second where there is one."""
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = [line.split(", ") for line in _answer("nvidia-smi", *query).splitlines()]
    found = [Gpu(row[0], _mebibytes(row[1]), row[2]) for row in rows if len(row) == 3]
    return tuple(found or _nvidia_files(root)) + tuple(_amd_files(root))


def _mebibytes(text: str) -> int | None:
    number = _whole(text.strip())
    return None if number is None else number << 20


def _nvidia_files(root: Path) -> Iterator[Gpu]:
    words = _read(root / "proc/driver/nvidia/version").split()
    driver = next((word for word in words if word[:1].isdigit() and "." in word), "")
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.split(":", 1) for line in _read(path).splitlines() if ":" in line)
        yield Gpu(lines.get("Model", "NVIDIA GPU").strip(), None, driver)


def _amd_files(root: Path) -> Iterator[Gpu]:
    for path in sorted((root / "sys/class/drm").glob("card[0-9]*/device/mem_info_vram_total")):
        if _read(path.with_name("vendor")) == "0x1002":
            yield Gpu(_read(path.with_name("product_name")) or "AMD GPU", _whole(_read(path)), "amdgpu")
