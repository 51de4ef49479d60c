"""Planted faults, each caught by a case of the conformance suite that is named beforehand.

A mutant is a file beside this one: which line of which module becomes what, and the id of the case that must fail.
It is applied to a copy of the packages, and the suite is run there as a user runs it. A fault of a kernel for GPUs may
be one that devices are tried for before they are used: then ``refused`` names the function that has other bits.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kinetic.errors import UsageError
from tests.conftest import absent
from tools.source import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
MUTANTS = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))}

DIFFERS, UNVERIFIABLE = 10, 13

GPU = [name for name, mutant in MUTANTS.items() if mutant["case"].endswith("opencl")]


@pytest.fixture
def opencl() -> None:
    try:
        from kinetic.backends.gpu import opencl

        opencl.open_device()
    except UsageError as reason:
        absent("pocl", str(reason))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def suite(copy: Path, home: Path, *cases: str, kernels: str = "") -> tuple[int, dict[str, dict]]:
    """Exit code, and the cases of the report by id."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "KINETIC_HOME": str(home)}
    environment |= {"KINETIC_KERNELS": kernels} if kernels else {}
    only = [word for case in cases for word in ("--only", case)]
    command = [sys.executable, "-m", "conformance", "--quick", "--json", *only]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, {case["id"]: case for case in json.loads(done.stdout)["cases"]}


def check_without_faults(copy: Path, home: Path, names: set[str]) -> None:
    code, cases = suite(copy, home, *(MUTANTS[name]["case"] for name in names))
    assert {name for name, case in cases.items() if case["outcome"] != "passed"} == set()
    assert code == 0
    assert cases.keys() == {MUTANTS[name]["case"] for name in names}


def test_the_copy_without_a_fault_passes(copy: Path, tmp_path: Path) -> None:
    check_without_faults(copy, tmp_path, MUTANTS.keys() - {*GPU})


def test_the_copy_without_a_fault_passes_on_opencl(opencl: None, copy: Path, tmp_path: Path) -> None:
    check_without_faults(copy, tmp_path, {*GPU})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if mutant.get("compiles") else ())
        for name, mutant in MUTANTS.items()
        if name not in GPU
    ],
)
def test_mutant(copy: Path, tmp_path: Path, name: str) -> None:
    plant(copy, tmp_path, name)


@pytest.mark.parametrize("name", GPU)
def test_mutant_of_kernels(opencl: None, copy: Path, tmp_path: Path, name: str) -> None:
    plant(copy, tmp_path, name)


def plant(copy: Path, tmp_path: Path, name: str) -> None:
    mutant = MUTANTS[name]
    path = copy / mutant["file"]
    sound = path.read_text(encoding="utf-8")
    assert sound.count(mutant["old"]) == 1, f"{mutant['file']} has changed: plant the fault anew in {name}.toml"
    path.write_text(sound.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        kernels = str(tmp_path / "kernels") if mutant.get("compiles") else ""
        code, cases = suite(copy, tmp_path, mutant["case"], kernels=kernels)
    finally:
        path.write_text(sound, encoding="utf-8")
    case = cases[mutant["case"]]
    if "refused" in mutant:
        assert (code, case["outcome"]) == (UNVERIFIABLE, "skipped"), case["text"]
        assert f"computes other bits than the reference in: {mutant['refused']}" in case["text"]
        return
    assert code == DIFFERS, f"not caught: {mutant['what']}"
    assert case["outcome"] == "failed"
    assert case["property"]
    assert not case["text"].startswith("stopped by"), case["text"]
