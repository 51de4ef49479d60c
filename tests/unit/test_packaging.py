"""What is installed is what is in the tree."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from kinetic._version import __version__
from tests.conftest import ROOT
from tools.source import PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    installed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert installed == in_tree
    assert {"kinetic/catalog.json", "kinetic/py.typed"} <= installed


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    folder = f"kinetic_engine-{__version__}.dist-info"
    metadata = wheel.read(f"{folder}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "kinetic = kinetic.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()


def test_claimed_python_versions_start_at_the_required_one() -> None:
    start = "Programming Language :: Python :: 3."
    minors = [int(entry.removeprefix(start)) for entry in PROJECT["classifiers"] if entry.startswith(start)]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[0] + len(minors)))


def test_audit_environment_has_the_base_bounds() -> None:
    """`make audit` installs the auditor's three packages with the bounds of pyproject.toml."""
    makefile = Path(ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("blake3", "cbor2", "pynacl"):
        (bound,) = [entry for entry in PROJECT["dependencies"] if entry.startswith(name)]
        assert f"'{bound}'" in makefile
