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

MIB = 1 << 20
MEMORY = 256 * MIB
"""Bytes that a program may take where its attack says nothing else."""


Contents = dict[str, tuple[int, int]]
"""Size and time of every file in a folder, by name."""


class Attack(NamedTuple):
    """One hostile setting, and what a program must say of it."""

    name: str
    numbers: Sequence[int]
    """Of the list of attacks that this project works through."""
    what: str
    arguments: Sequence[str]
    """What follows ``python -m``: a module, then its arguments; names of files are relative to the folder."""
    write: Callable[[Path], object]
    """Puts the files into an empty folder."""
    exit_code: int
    reason: str = ""
    """A name, or words, that the output must hold."""
    needs_user: bool = False
    """Whether the superuser, who may read everything, can't be refused."""
    spoils: Sequence[str] = ()
    """Files that the attack itself changes while the program runs."""
    memory: int = MEMORY
    """Bytes that the program may take, what a started Python takes not counted; files that are mapped count nothing."""
    seconds: float = TIMEOUT
    """How long it may run."""


class Outcome(NamedTuple):
    """What a program did."""

    exit_code: int
    output: str
    written: list[str]
    """Files that were not there before, or are other than they were."""


def run(attack: Attack, folder: Path) -> Outcome:
    """Write the files into an empty folder and run the program there. Raises TimeoutExpired if it hangs."""
    attack.write(folder)
    before = contents(folder)
    command = [sys.executable, "-m", *attack.arguments]
    path = os.pathsep.join(filter(None, [str(root()), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT
    )
    output = (done.stdout + done.stderr).decode("utf-8", errors="surrogateescape")
    return Outcome(done.returncode, output, changed_files(attack, before, contents(folder)))


def fault(attack: Attack, outcome: Outcome) -> str:
    """What a program did wrong in one sentence, or "" if it did what it must."""
    said = outcome.output.strip().splitlines()
    last = f"; its last words: {said[-1][:200]}" if said else ""
    if outcome.exit_code != attack.exit_code:
        return f"exit code {outcome.exit_code} instead of {attack.exit_code}{last}"
    if attack.reason not in outcome.output:
        return f"the output does not say {attack.reason!r}{last}"
    if "Traceback" in outcome.output:
        return f"a traceback instead of a sentence{last}"
    if "\x1b" in outcome.output:
        return "the output holds control characters"
    return f"files were written: {', '.join(outcome.written)}" if outcome.written else ""


def changed_files(attack: Attack, before: Contents, after: Contents) -> list[str]:
    """Names of the files that were not there before or are other than they were, but for those the attack spoils."""
    return sorted(name for name in after if after[name] != before.get(name) and name not in attack.spoils)


def root() -> Path:
    return Path(__file__).resolve().parents[2]


def contents(folder: Path) -> Contents:
    """Size and time of every file: enough to see one that was written."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}
