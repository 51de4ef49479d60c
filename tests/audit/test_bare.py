"""An auditor's machine: blake3, cbor2 and PyNaCl, and nothing else that has to be installed."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ktc.keys import write_key_pair
from receipts.encode import write_receipt
from receipts.sign import sign_record
from tests.support.sample_receipts import SEED, changed, full_sample

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("blake3", "cbor2", "_cbor2", "nacl", "cffi", "_cffi_backend", "pycparser")
"""The three packages, and the parts they bring along."""

OUTSIDERS = ("numpy", "numba", "typer", "jinja2", "regex", "kinetic", "pytest")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder that holds links to the three packages and to ours, and no other."""
    folder = tmp_path_factory.mktemp("bare")
    places = [Path(spec.origin) for name in INSTALLED if (spec := find_spec(name)) and spec.origin]
    places = [place.parent if place.stem == "__init__" else place for place in places]
    for place in [*places, ROOT / "ktc", ROOT / "receipts"]:
        (folder / place.name).symlink_to(place)
    return folder


def run(bare, *arguments):
    """Python without site-packages, knowing the bare folder alone."""
    command = [sys.executable, "-S", "-P", *map(str, arguments)]
    environment = {"PYTHONPATH": str(bare), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=bare, env=environment, capture_output=True, text=True, timeout=60)


def test_the_environment_is_bare(bare):
    program = (
        "import sys\nfor name in sys.argv[1:]:\n try: __import__(name)\n except ImportError: continue\n print(name)"
    )
    result = run(bare, "-c", program, *OUTSIDERS)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("form", ["json", "cbor"])
def test_receipts_are_checked_there(bare, tmp_path, form):
    record = full_sample()
    write_receipt(tmp_path / "signed", record, [sign_record(record, SEED)], form=form)
    result = run(bare, "-m", "receipts", "check", tmp_path / "signed")
    assert (result.returncode, result.stderr) == (0, "")
    assert "signature consistent" in result.stdout


def test_and_refused_there(bare, tmp_path):
    record = full_sample()
    forged = {"receipt": changed(record, "text", " red"), "signatures": [sign_record(record, SEED)]}
    (tmp_path / "forged").write_text(json.dumps(forged))
    result = run(bare, "-m", "receipts", "check", tmp_path / "forged")
    assert (result.returncode, result.stderr) == (12, "")


def test_nothing_slow_is_imported(bare, tmp_path):
    """Unsigned receipts don't load PyNaCl, which takes as long to import as all the rest."""
    write_receipt(tmp_path / "unsigned", full_sample())
    program = "import sys, receipts.__main__ as m; m.main(sys.argv[1:]); print(*sys.modules)"
    result = run(bare, "-c", program, "check", tmp_path / "unsigned")
    modules = set(result.stdout.splitlines()[-1].split())
    assert not modules & {*OUTSIDERS, "nacl", "dataclasses", "inspect", "asyncio", "tempfile"}


def test_keys_are_pinned_there(bare, tmp_path):
    record = full_sample()
    write_receipt(tmp_path / "signed", record, [sign_record(record, SEED)])
    for name, seed in (("alice", SEED), ("bob", bytes(32))):
        write_key_pair(tmp_path / name, seed)
    result = run(bare, "-m", "receipts", "check", tmp_path / "signed", "--key", tmp_path / "alice.pub")
    assert (result.returncode, result.stderr) == (0, "") and "valid signature by alice" in result.stdout
    result = run(bare, "-m", "receipts", "check", tmp_path / "signed", "--key", tmp_path / "bob.pub")
    assert (result.returncode, result.stderr) == (12, "") and "valid" not in result.stdout


def test_samples_are_recomputed_there(bare):
    program = "from receipts.audit import choose; print(choose(50, 8, bytes(range(32))))"
    assert run(bare, "-c", program).stdout == "[8, 9, 17, 26, 30, 36, 39, 49]\n"
