"""What an audit has found so far, on disk, so that an interrupted one goes on where it was.

One JSON object a line: who wrote the file, the seed of the sample, then one
verdict after the other, each on the disk before the next rerun begins. A
verdict counts again only for the same bytes of the receipt under the same
circumstances (engine, profile, device, method, model), and only where the
model is found again and hashed. Whoever can write the
file can write verdicts; it is made for its owner alone.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ktc.errors import FileProblem, KtcError
from ktc.files import read_bounded
from receipts.audit import parse_seed
from receipts.errors import DIFFERS, IDENTICAL
from receipts.verify import METHODS, Place, Verdict

HEAD = b'{"type": "kinetic-audit-state", "version": 1}\n'
MAX_BYTES = 1 << 30

_KEPT_CODES = (IDENTICAL, DIFFERS, 11)
_KINDS = {name: type(value) for name, value in Verdict(0, "", "")._asdict().items()}
"""Fields of a verdict with their exact types; a tuple is a list in JSON."""


class State:
    """The state file of one audit, which no other can use meanwhile.

    Raises FileProblem if it can't be used, is in use (BUSY), or is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.seed = ""
        """Hex, of the sample that an interrupted audit had chosen; "" if there is none."""
        self._kept: dict[tuple[str, str], Verdict] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._handle = os.open(path, flags, 0o600)
        except OSError as error:
            raise FileProblem(f"cannot write {self.path}: {error.strerror}", name="UNWRITABLE") from None
        try:
            _require_own(self.path, os.fstat(self._handle))
            _lock(self.path, self._handle)
            self._begin(read_bounded(path, MAX_BYTES))
        except BaseException:
            self.close()
            raise

    def _begin(self, data: bytes) -> None:
        if HEAD.startswith(data):  # new, or torn in its first line
            os.truncate(self._handle, 0)
            self._append(HEAD)
        elif not data.startswith(HEAD):
            raise FileProblem(f"{self.path} is not the state of an audit: name another file", name="NOT_A_STATE")
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        *lines, torn = data.split(b"\n")
        for line in lines[1:]:
            with suppress(ValueError, KeyError, TypeError, RecursionError, KtcError):
                self._take(json.loads(line))
        if torn:
            self._append(b"\n")

    def _take(self, entry: dict[str, Any]) -> None:
        if "done" in entry:
            self.seed = ""
        elif "seed" in entry:
            self.seed = parse_seed(entry["seed"]).hex()
        else:
            self._kept[str(entry["file"]), str(entry["under"])] = _verdict(entry["verdict"])

    def get(self, file: str, under: str) -> Verdict | None:
        """The verdict on a file with this digest under these circumstances, if there is one."""
        return self._kept.get((file, under))

    def add(self, file: str, under: str, verdict: Verdict) -> None:
        """Keep the verdict of a rerun that came to its end; others depend on more than the circumstances say."""
        if verdict.method and verdict.exit_code in _KEPT_CODES:
            self._append(_line({"file": file, "under": under, "verdict": verdict._asdict()}))

    def begin_sample(self, seed: bytes) -> None:
        self._append(_line({"seed": seed.hex()}))

    def finish(self, *, keep: bool) -> None:
        """The audit is complete: the file goes, or stays and says so, that the next sample be a new one."""
        if keep:
            self._append(_line({"done": True}))
        else:
            with suppress(OSError):
                os.unlink(self.path)

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)
        except OSError as error:
            raise FileProblem(f"cannot write {self.path}: {error.strerror}", name="UNWRITABLE") from None

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _require_own(path: str, status: os.stat_result) -> None:
    """Whoever can write the file can write verdicts."""
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        message = (
            f"{path} can be written by others, and with it verdicts: name a file of your own that only you can write"
        )
        raise FileProblem(message, name="EXPOSED_STATE")


def _lock(path: str, handle: int) -> None:
    """Keep other audits out until the handle is closed, where the system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_busy = not os.path.samestat(os.fstat(handle), os.stat(path))  # an audit that just ended took it away
    except (BlockingIOError, FileNotFoundError):
        is_busy = True
    except OSError:  # a share that knows no locks
        return
    if is_busy:
        message = f"{path} is in use by another audit: wait for that one, or name another file with --state"
        raise FileProblem(message, name="BUSY")


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"


def _verdict(table: dict[str, Any]) -> Verdict:
    """A verdict as ``State.add`` wrote it. Raises ValueError, KeyError or TypeError for anything else."""
    fields = dict(table)
    for name in ("notes", "trail"):
        fields[name] = tuple(table[name])
    fields["trail"] = tuple(Place(*place) for place in fields["trail"])
    if {name: type(value) for name, value in fields.items()} != _KINDS:
        raise TypeError("not a verdict")
    verdict = Verdict(**fields)
    if verdict.method not in METHODS or verdict.exit_code not in _KEPT_CODES:
        raise ValueError("not the verdict of a rerun")
    return verdict
