"""Bounded reading and atomic writing of small files."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from ktc import limits
from ktc.errors import FileProblem, LimitExceeded, SignatureProblem

Name = str | os.PathLike[str]


def read_bounded(path: Name, limit: int = limits.MAX_FILE_BYTES) -> bytes:
    """The file's bytes, of which there may be at most ``limit``."""
    try:
        with os.fdopen(_open_regular(os.fspath(path)), "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise FileProblem(f"cannot read {os.fspath(path)}: {error.strerror}", name="UNREADABLE") from None
    if len(data) > limit:
        raise LimitExceeded(f"{os.fspath(path)} is larger than {limit:,} bytes", name="FILE_TOO_LARGE")
    return data


def read_guarded(path: Name, limit: int, *, is_secret: bool = False) -> bytes:
    """The bytes of a file that decides whom to trust: a regular file, no symbolic link, looked at by one handle.

    A secret's mode must let nobody in but its owner. Raises FileProblem,
    LimitExceeded, and SignatureProblem for links and open modes.
    """
    name = os.fspath(path)
    try:
        with os.fdopen(_open_no_link(name), "rb") as file:
            _require_private(name, os.fstat(file.fileno()).st_mode, is_secret)
            data = file.read(limit + 1)
    except OSError as error:
        raise FileProblem(f"cannot read {name}: {error.strerror}", name="UNREADABLE") from None
    if len(data) > limit:
        raise LimitExceeded(f"{name} is larger than {limit:,} bytes", name="FILE_TOO_LARGE")
    return data


def _open_no_link(name: str) -> int:
    """A handle on a regular file that is no symbolic link."""
    try:
        return _open_regular(name, "O_NOFOLLOW")
    except OSError as error:
        if error.errno == errno.ELOOP or os.path.islink(name):
            raise SignatureProblem(
                f"{name} is a symbolic link, which anybody who can change it can point elsewhere: name the file itself",
                name="SYMLINK",
            ) from None
        raise


def _open_regular(name: str, *more: str) -> int:
    """A handle on a regular file; a FIFO is not waited for."""
    flags = os.O_RDONLY
    for flag in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC", *more):
        flags |= getattr(os, flag, 0)
    handle = os.open(name, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileProblem(f"{name} is not a regular file: name the file itself", name="NOT_A_FILE")
    return handle


def _require_private(name: str, mode: int, is_secret: bool) -> None:
    if is_secret and os.name == "posix" and mode & 0o077:
        raise SignatureProblem(
            f"{name} is a secret key that others than its owner may use (mode {mode & 0o777:04o}):"
            f" run chmod 600 on it, and make a new one if somebody may have read it",
            name="EXPOSED_KEY",
        )


def write_new(path: Name, data: bytes, mode: int = 0o666) -> None:
    """Put ``data`` into a file that must not be there yet, whole or not at all; ``mode`` less the umask from the start.

    Raises FileProblem: EXISTS, UNWRITABLE.
    """
    name = os.fspath(path)
    try:
        handle = os.open(name, _NEW, mode)
        try:
            _write_and_sync(handle, data)
        except BaseException:
            os.unlink(name)
            raise
    except FileExistsError:
        raise FileProblem(f"{name} is already there, and is not overwritten", name="EXISTS") from None
    except OSError as error:
        raise FileProblem(f"cannot write {name}: {error.strerror}", name="UNWRITABLE") from None
    sync_folder(os.path.dirname(name) or ".")


def write_atomic(path: Name, data: bytes) -> None:
    """Put ``data`` under ``path`` whole or not at all: temporary file, fsync, rename."""
    target = os.fspath(path)
    folder, name = os.path.split(target)
    scratch = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    try:
        _write_and_sync(os.open(scratch, _NEW, 0o666), data)
        os.replace(scratch, target)
        sync_folder(folder or ".")
    except OSError as error:
        raise FileProblem(f"cannot write {target}: {error.strerror}", name="UNWRITABLE") from None
    finally:
        with suppress(OSError):
            os.unlink(scratch)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags for a file that must not be there yet; no link is followed."""


def _write_and_sync(handle: int, data: bytes) -> None:
    """Write all, flush to the disk, close."""
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Make the rename itself durable, where the system can: Windows opens no folders, some shares sync none."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
