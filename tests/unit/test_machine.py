"""Facts of machines that are not this one: trees of files as Linux shows them, read as if they were /."""

from __future__ import annotations

import os
import sys

import pytest

from kinetic.api import machine
from kinetic.api.machine import Cache, Gpu

CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2.0GHz
flags\t\t: fpu fma avx2 f16c avx512f avx512_vnni

processor\t: 1
"""
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def topology(*places):
    """Files of processors at (socket, core)."""
    files = {}
    for number, (socket, core) in enumerate(places):
        folder = f"sys/devices/system/cpu/cpu{number}/topology"
        files |= {f"{folder}/physical_package_id": f"{socket}\n", f"{folder}/core_id": f"{core}\n"}
    return files


def cache(processor, index, level, kind, size, shared):
    folder = f"sys/devices/system/cpu/cpu{processor}/cache/index{index}"
    values = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
    return {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}


def test_a_linux_machine(tmp_path):
    files = {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO} | topology((0, 0), (0, 0), (0, 1), (1, 0))
    facts = machine.describe(tree(tmp_path, files))
    assert facts.processor == "Some CPU @ 2.0GHz"
    assert facts.features == ("AVX2", "FMA", "F16C", "AVX-512", "AVX-512 VNNI")
    assert facts.physical == 3  # the first two share a core
    assert (facts.memory, facts.free) == (16000000 << 10, 8000000 << 10)
    assert facts.quota is None and facts.caches == ()


def test_a_machine_that_tells_nothing(tmp_path):
    facts = machine.describe(tmp_path)
    assert (facts.memory, facts.free, facts.quota, facts.physical, facts.caches) == (None, None, None, None, ())
    assert facts.cores >= facts.usable >= 1 and facts.processor and facts.features == ()


def test_nonsense_in_files_is_unknown_not_an_error(tmp_path):
    files = {
        "proc/meminfo": "MemTotal: lots kB\nMemAvailable:\n",
        "proc/cpuinfo": "\xff\n",
        "proc/self/cgroup": "x\n:\n",
    }
    files |= cache(0, 0, "one", "Data", "big", "0")
    facts = machine.describe(tree(tmp_path, files))
    assert (facts.memory, facts.free, facts.caches) == (None, None, ())


def test_caches_that_are_shared_count_once(tmp_path):
    files = {}
    for processor in (0, 1):
        files |= cache(processor, 0, 1, "Data", "48K", str(processor))
        files |= cache(processor, 3, 3, "Unified", "32M", "0-1")
    facts = machine.describe(tree(tmp_path, files))
    assert facts.caches == (Cache(1, "data", 48 << 10, 2), Cache(3, "unified", 32 << 20, 1))


# --- control groups ---


def test_the_least_quota_around_a_process_counts(tmp_path):
    files = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    files |= {"sys/fs/cgroup/pod/cpu.max": "150000 100000\n", "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n"}
    assert machine.describe(tree(tmp_path, files)).quota == 1.5


def test_a_quota_of_the_first_version(tmp_path):
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/box\n3:cpuset:/\n"}
    files |= {
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
    }
    files |= {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert machine.describe(tree(tmp_path, files)).quota == 0.5


def test_a_group_of_another_name_space_is_not_missed(tmp_path):
    files = {"proc/self/cgroup": "0::/nowhere/here\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert machine.describe(tree(tmp_path, files)).quota == 2.0


def test_memory_is_cut_by_control_groups(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/box\n"}
    files |= {"sys/fs/cgroup/box/memory.max": str(4 << 30), "sys/fs/cgroup/box/memory.current": str(3 << 30)}
    files |= {"sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {1 << 30}\n"}
    facts = machine.describe(tree(tmp_path, files))
    assert (facts.memory, facts.free) == (4 << 30, 2 << 30)  # files the kernel can drop are free


def test_a_group_without_a_limit_cuts_nothing(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "2:memory:/\n"}
    files |= {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    files |= {"sys/fs/cgroup/memory/memory.usage_in_bytes": "5"}
    assert machine.describe(tree(tmp_path, files)).memory == 16000000 << 10


# --- GPUs ---


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus_as_nvidia_smi_says(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 143771, 570.1'; echo 'NVIDIA L4, [N/A], 570.1'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.gpus(tmp_path) == (Gpu("NVIDIA H200", 143771 << 20, "570.1"), Gpu("NVIDIA L4", None, "570.1"))


def test_gpus_without_nvidia_smi(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", "echo 'no devices were found'; exit 6")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    files = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.2.1  Thu\n"}
    files |= {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA T4\nIRQ: 5\n"}
    device = "sys/class/drm/card0/device"
    files |= {f"{device}/mem_info_vram_total": "17163091968\n", f"{device}/vendor": "0x1002\n"}
    found = machine.gpus(tree(tmp_path, files))
    assert found == (Gpu("NVIDIA T4", None, "570.2.1"), Gpu("AMD GPU", 17163091968, "amdgpu"))


def test_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus(tmp_path) == ()


# --- this machine ---


@pytest.mark.skipif(sys.platform != "linux", reason="looks for what Linux tells")
def test_this_machine():
    facts = machine.describe()
    assert facts.memory and facts.free and 0 < facts.free <= facts.memory < 1 << 50
    assert facts.physical and 1 <= facts.usable <= facts.cores and facts.load is not None
    assert facts.plain()["caches"] == [entry._asdict() for entry in facts.caches]


def test_bandwidth_is_that_of_a_memory(monkeypatch):
    found = machine.read_bandwidth(2, 32 << 20, rounds=2)
    assert found is not None and 1e8 < found < 1e13


def test_bandwidth_that_cannot_be_measured():
    assert machine.read_bandwidth(1, 0) is None


def test_nothing_heavy_is_loaded():
    import subprocess

    code = "import sys; from kinetic.api import machine; machine.describe(); machine.gpus(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "llvmlite", "kinetic.engine"} & set(done.stdout.split())
