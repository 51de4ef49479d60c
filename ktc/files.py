"""Bounded reading and atomic writing of small files."""

from __future__ import annotations

import os
from contextlib import suppress

from ktc import limits
from ktc.errors import FileProblem, LimitExceeded

Name = str | os.PathLike[str]


def read_bounded(path: Name, limit: int = limits.MAX_FILE_BYTES) -> bytes:
    """The file's bytes, of which there may be at most ``limit``."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise FileProblem(f"cannot read {os.fspath(path)}: {error.strerror}", name="UNREADABLE") from None
    if len(data) > limit:
        raise LimitExceeded(f"{os.fspath(path)} is larger than {limit:,} bytes", name="FILE_TOO_LARGE")
    return data


def write_atomic(path: Name, data: bytes) -> None:
    """Put ``data`` under ``path`` whole or not at all: temporary file, fsync, rename."""
    target = os.fspath(path)
    folder, name = os.path.split(target)
    scratch = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    try:
        _write_new(scratch, data)
        os.replace(scratch, target)
        _sync_folder(folder or ".")
    except OSError as error:
        raise FileProblem(f"cannot write {target}: {error.strerror}", name="UNWRITABLE") from None
    finally:
        with suppress(OSError):
            os.unlink(scratch)


def _write_new(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    """Make the rename itself durable, where the system can: Windows opens no folders, some shares sync none."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
