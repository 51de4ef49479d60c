"""What an attack is, and how one is run: in a process of its own, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 20
"""Seconds after which a program counts as hanging."""


class Attack(NamedTuple):
    """One hostile setting, and what a program must say of it."""

    name: str
    numbers: Sequence[int]
    """Of the list of attacks that this project works through."""
    what: str
    arguments: Sequence[str]
    """What follows ``python -m``: a module, then its arguments; names of files are relative to the folder."""
    write: Callable[[Path], None]
    """Puts the files into an empty folder."""
    exit_code: int
    reason: str = ""
    """A name, or words, that the output must hold."""
    needs_user: bool = False
    """Whether the superuser, who may read everything, can't be refused."""
    spoils: Sequence[str] = ()
    """Files that the attack itself changes while the program runs."""


class Outcome(NamedTuple):
    """What a program did."""

    exit_code: int
    output: str
    written: list[str]
    """Files that were not there before, or are other than they were."""


def run(attack: Attack, folder: Path) -> Outcome:
    """Write the files into an empty folder and run the program there. Raises TimeoutExpired if it hangs."""
    attack.write(folder)
    before = _contents(folder)
    command = [sys.executable, "-m", *attack.arguments]
    path = os.pathsep.join(filter(None, [str(_root()), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT
    )
    output = (done.stdout + done.stderr).decode("utf-8", errors="surrogateescape")
    after = _contents(folder)
    written = sorted(name for name in after if after[name] != before.get(name) and name not in attack.spoils)
    return Outcome(done.returncode, output, written)


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file: enough to see one that was written."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}
