"""Large files that appear under their name whole, or not at all."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from ktc.errors import FileProblem
from ktc.files import sync_folder
from ktc.passes import Name

ABANDONED = 60.0
"""Seconds without a write after which a scratch file may be a leftover: a new one is locked a moment later only."""


class NewFile:
    """A file being written beside its target; ``keep`` gives it the target's name. A context manager.

    Whatever ends the block before ``keep`` (an exception, a full disk, the end of
    the process) leaves nothing under the target's name; what can be, is removed.
    """

    def __init__(self, target: Name, *, overwrite: bool = False) -> None:
        """Raises FileProblem: EXISTS for whatever has the name already, NOT_A_FILE, UNWRITABLE."""
        self.target = os.fspath(target)
        self.overwrite = overwrite
        self._refuse_target()
        folder, name = os.path.split(self.target)
        self.path = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
        self._handle = -1

    def _refuse_target(self) -> None:
        """A link, a FIFO or a device is never written to or replaced; a file only where that is asked for."""
        try:
            mode = os.lstat(self.target).st_mode
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from None
        if not self.overwrite:
            raise FileProblem(f"{self.target} is already there, and is not overwritten", name="EXISTS")
        if not stat.S_ISREG(mode):
            raise FileProblem(f"{self.target} is there and is no regular file: give another name", name="NOT_A_FILE")

    def fileno(self) -> int:
        return self._handle

    def write(self, data: bytes | memoryview) -> None:
        """All of it, at the end of what is there."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:
            raise self._unwritable(error) from None

    def write_at(self, data: bytes, at: int) -> None:
        """Over what is there, or past its end; the place of ``write`` is then after it."""
        try:
            os.lseek(self._handle, at, os.SEEK_SET)
        except OSError as error:
            raise self._unwritable(error) from None
        self.write(data)

    def sync(self) -> None:
        """Flush to the disk: only then does the system say that there was no room."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise self._unwritable(error) from None

    def keep(self) -> None:
        """Flush, and take the target's name."""
        self.sync()
        self._refuse_target()
        try:
            os.replace(self.path, self.target)
        except OSError as error:
            raise self._unwritable(error) from None
        sync_folder(os.path.dirname(self.target) or ".")

    def _unwritable(self, error: Exception) -> FileProblem:
        reason = getattr(error, "strerror", None) or error
        return FileProblem(f"cannot write {self.target}: {reason}", name="UNWRITABLE")

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            try:
                self._handle = os.open(self.path, flags, 0o666)
            except (OSError, ValueError) as error:
                raise self._unwritable(error) from None
            _lock(self._handle)
            self._remove_leftovers()
        except FileProblem:
            raise
        except BaseException:  # Ctrl-C as the file appears
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._handle)
        self._remove()

    def _remove_leftovers(self) -> None:
        """What writers of this very target left behind that were killed; one still at work holds its lock."""
        folder, name = os.path.split(self.target)
        ours = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.tmp")
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for path in [entry.path for entry in entries if ours.fullmatch(entry.name)]:
                if not os.path.samefile(path, self.path) and time.time() - os.lstat(path).st_mtime > ABANDONED:
                    _remove_unlocked(path)

    def _remove(self) -> None:
        with suppress(OSError):  # after keep it is no longer there
            os.unlink(self.path)


def _lock(handle: int) -> bool:
    """Whether this process alone has the file now; true where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True
    except OSError:
        return False
    return True


def _remove_unlocked(path: str) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            if _lock(handle):
                os.unlink(path)
        finally:
            os.close(handle)
