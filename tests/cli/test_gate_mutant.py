"""What the gate is for: a receipt made by a mutated kernel is caught, and so is the mutated kernel by good receipts.
A trace then names the operation.

The program is copied, one line of a kernel is replaced, and the copy compiles it into a folder of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.tiny_models import write_tiny_llama

PACKAGES = ("kinetic", "ktc", "receipts", "conformance")

EXP = "y = b.fadd(fma(b, p, b.fmul(r, r), r), like(ty, 1))"
UNFUSED = "y = b.fadd(b.fadd(b.fmul(p, b.fmul(r, r)), r), like(ty, 1))"
"""exp with one rounding more: the last bit of some of its values."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and the mutated program in ``mutant``."""
    folder = tmp_path_factory.mktemp("mutant")
    write_tiny_llama(folder / "m.gguf", layers=1, types={"": "Q8_0"})
    for package in PACKAGES:
        copy = folder / "mutant" / package
        shutil.copytree(ROOT / package, copy, ignore=shutil.ignore_patterns("__pycache__", "golden", "vectors"))
    source = folder / "mutant" / "kinetic" / "backends" / "cpu" / "functions.py"
    text = source.read_text(encoding="utf-8")
    assert text.count(EXP) == 1
    source.write_text(text.replace(EXP, UNFUSED), encoding="utf-8")
    return folder


def kinetic(folder: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command of the program in ``root``, with ``folder`` as its home and as where it is."""
    environment = {**os.environ, "PYTHONPATH": str(root), "KINETIC_HOME": str(folder / "home")}
    if root != ROOT:
        environment["KINETIC_KERNELS"] = str(folder / "kernels")
    command = [sys.executable, "-m", "kinetic", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def answer(folder: Path, root: Path, name: str) -> None:
    """A receipt with digests of logits, and a baseline of it alone."""
    words = ["m.gguf", "Name three rivers.", "--temp", "0.8", "--seed", "7", "-n", "40", "--commit", "-t", "1", "-q"]
    done = kinetic(folder, root, "run", *words, "--receipt", f"{name}.json")
    assert done.returncode == 0, done.stderr
    done = kinetic(folder, ROOT, "gate", "--write", "-o", f"{name}.gate.json", f"{name}.json")
    assert done.returncode == 0, done.stderr


def test_a_receipt_made_by_a_mutated_kernel_is_caught(place: Path) -> None:
    answer(place, place / "mutant", "mutated")
    done = kinetic(place, ROOT, "gate", "--baseline", "mutated.gate.json", "m.gguf")
    assert done.returncode == 10, (done.stdout, done.stderr)
    assert re.search(r"mutated\.json: FAILED \((LOGITS_DIFFER|DIFFERS)\): token \d+: ", done.stdout)
    assert re.search(r"^  @@ (row|token) \d+ of ", done.stdout, re.MULTILINE)
    assert "the engine changed: the receipt claims " in done.stdout
    # The mutated program believes itself, or it was no mutant that was caught.
    assert kinetic(place, place / "mutant", "gate", "--baseline", "mutated.gate.json", "m.gguf").returncode == 0


def test_a_mutated_kernel_is_caught_by_a_good_receipt(place: Path) -> None:
    answer(place, ROOT, "good")
    assert kinetic(place, ROOT, "gate", "--baseline", "good.gate.json", "m.gguf", "--strict").returncode == 0
    done = kinetic(place, place / "mutant", "gate", "--baseline", "good.gate.json", "m.gguf")
    assert done.returncode == 10, (done.stdout, done.stderr)


def test_a_trace_names_the_operation_of_the_mutated_kernel(place: Path) -> None:
    """At the token that the gate names. exp is computed by attention and by SiLU, and by nothing else in this model."""
    answer(place, ROOT, "traced")
    done = kinetic(place, place / "mutant", "gate", "--baseline", "traced.gate.json", "m.gguf")
    token = re.search(r"token (\d+): ", done.stdout)
    assert token, done.stdout
    words = ["trace", "traced.json", "--token", token[1], "--model", "m.gguf", "-t", "1", "-q", "--no-pack-cache"]
    for name, root, device, digest in (
        ("mutant", place / "mutant", "cpu", "DIFFERS"),
        ("good", ROOT, "reference", "agrees"),
    ):
        done = kinetic(place, root, *words, "-o", f"{name}.cbor", "--device", device)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        assert done.stdout.endswith(f"gives the same logits; the receipt's digest of them {digest}\n")
    done = kinetic(place, ROOT, "trace", "diff", "good.cbor", "mutant.cbor")
    assert done.returncode == 10, (done.stdout, done.stderr)
    assert re.match(
        r"DIFFERS: operation \d+ of \d+, (attend|gated) \(layer 0\), element \d+: 0x[0-9a-f]{8} \(", done.stdout
    )
