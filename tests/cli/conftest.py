"""Running the command as a user does: another process, its own home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.receipt_files import arrive, refuser, runner

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "kinetic"]


@pytest.fixture
def kinetic(tmp_path):
    """``kinetic("run", ...)`` -> CompletedProcess with text output; ``check`` is the exit code that must come."""

    def kinetic(*words, check=0, stdin="", env=(), **options):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "KINETIC_HOME": str(tmp_path / "home"), **dict(env)}
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [*COMMAND, *map(str, words)], input=data, capture_output=True, env=environment, timeout=120, **options
        )
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    return kinetic


# For `kinetic receipt`, which is run in this process.


@pytest.fixture
def place(tmp_path, monkeypatch):
    return arrive(tmp_path, monkeypatch)


@pytest.fixture
def run(capsys):
    return runner(capsys)


@pytest.fixture
def refused(run, place):
    return refuser(run, place)
