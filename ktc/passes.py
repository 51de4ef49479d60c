"""Passes over part of an open file: each reads for itself, hashes as it reads, and keeps no more than 4 MiB.

Several passes run side by side, one thread each. Reading twice from the page
cache costs less than handing buffers from thread to thread, and a pass that
gets ahead waits for the disk where the other does not, so they stay together.
Reading and not mapping: a file that is cut short is then an error and no signal.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from blake3 import blake3

from ktc.errors import FileProblem

LEAF_DOMAIN = b"kinetic leaf v1\0"
LEAF_BYTES = 1 << 20
"""Of the model file, what one leaf digest covers."""

PIECE = 4 << 20
"""Bytes read and hashed at a time. From 0.25 to 4 MiB are equally fast (8 are not), and between two pieces a thread
waits for the interpreter."""

_SMALL = LEAF_BYTES
"""Up to so many bytes, a thread takes longer to start than a pass to end."""

Name: TypeAlias = str | os.PathLike[str]
Tick: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were just worked off."""

Job: TypeAlias = Callable[[Tick], Any]
"""A whole pass."""


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> Any: ...
    def hexdigest(self) -> str: ...


def open_regular(path: Name, *, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
    """A handle on a regular file, and its status; nothing is waited for.

    Raises FileProblem: UNREADABLE or, where it is to be written, UNWRITABLE; NOT_A_FILE.
    """
    is_write = bool(flags & (os.O_RDWR | os.O_WRONLY))
    for flag in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):  # opening a FIFO would wait for its other end
        flags |= getattr(os, flag, 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        if is_write:
            raise FileProblem(f"cannot write {os.fspath(path)}: {_reason(error)}", name="UNWRITABLE") from None
        raise unreadable(path, error) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise FileProblem(f"{os.fspath(path)} is not a regular file", name="NOT_A_FILE")
    return handle, status


def unreadable(path: Name, error: Exception) -> FileProblem:
    return FileProblem(f"cannot read {os.fspath(path)}: {_reason(error)}", name="UNREADABLE")


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def check_unchanged(handle: int, before: os.stat_result, path: Name) -> None:
    """Raises FileProblem FILE_CHANGED if the file was written to since ``before`` was taken."""
    now = os.fstat(handle)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise FileProblem(f"{os.fspath(path)} was changed while it was read", name="FILE_CHANGED")


def read_into(handle: int, buffer: memoryview, at: int) -> None:
    """Fill ``buffer`` from byte ``at`` on; raises FileProblem if the file ends before, or cannot be read."""
    done = 0
    while done < len(buffer):
        try:
            count = _read_once(handle, buffer[done:], at + done)
        except OSError as error:
            raise FileProblem(f"cannot read from byte {at + done} on: {error.strerror}", name="UNREADABLE") from None
        if count == 0:
            raise FileProblem(f"the file was cut short at byte {at + done} while it was read", name="FILE_CHANGED")
        done += count


def read_bytes(handle: int, at: int, length: int) -> bytes:
    """``length`` bytes, which the caller has compared with the file's size."""
    buffer = bytearray(length)
    read_into(handle, memoryview(buffer), at)
    return bytes(buffer)


if hasattr(os, "preadv"):

    def _read_once(handle: int, buffer: memoryview, at: int) -> int:
        return os.preadv(handle, [buffer], at)

else:  # Windows: the position belongs to the handle, so one thread at a time
    _turn = threading.Lock()

    def _read_once(handle: int, buffer: memoryview, at: int) -> int:
        with _turn:
            os.lseek(handle, at, os.SEEK_SET)
            data = os.read(handle, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def pieces(handle: int, begin: int, length: int, size: int = PIECE) -> Iterator[memoryview]:
    """The bytes in pieces of ``size``; each is gone when the next is asked for."""
    buffer = memoryview(bytearray(min(length, size)))
    for done in range(0, length, size):
        piece = buffer[: length - done]
        read_into(handle, piece, begin + done)
        yield piece


def leaf_count(length: int) -> int:
    """Leaves of a section of ``length`` bytes."""
    return -(-length // LEAF_BYTES)


def leaf_digest(index: int, data: bytes | memoryview) -> bytes:
    """32 bytes; the index is bound in, so that two leaves cannot trade places."""
    return blake3(LEAF_DOMAIN + index.to_bytes(8, "little")).update(data).digest()


def flat(handle: int, begin: int, length: int, hasher: Hasher, tick: Tick) -> str:
    """Hex digest by ``hasher`` of a range of the file."""
    for piece in pieces(handle, begin, length):
        hasher.update(piece)
        tick(len(piece))
    return hasher.hexdigest()


def leaves(handle: int, begin: int, length: int, tick: Tick) -> bytes:
    """The leaf digests of a range of the file, one after the other."""
    found = bytearray()
    for index, piece in enumerate(pieces(handle, begin, length, LEAF_BYTES)):
        found += leaf_digest(index, piece)
        tick(len(piece))
    return bytes(found)


class Found(NamedTuple):
    """What passes over one range found; "" and b"" for what was not asked for."""

    blake3: str
    leaves: bytes
    sha256: str


class Passes:
    """Passes over one range of a file, side by side, one thread each."""

    def __init__(self, handle: int, begin: int, length: int) -> None:
        self._range = (handle, begin, length)
        self._stop = False
        self._results: dict[str, Any] = {}
        self._fault: BaseException | None = None

    def run(self, tick: Tick, *, leaves: bool, sha256: bool) -> Found:
        """BLAKE3, and what else is asked for. ``tick`` hears of the slowest pass, in this thread.

        An exception in one pass, or in ``tick``, ends all of them and is raised here.
        """
        jobs: dict[str, Job] = {"leaves": self._leaves} if leaves else {}
        jobs["blake3"] = self._blake3
        if sha256:
            jobs["sha256"] = self._sha256
        main = list(jobs)[-1]
        threads: list[threading.Thread] = []
        try:
            for name in list(jobs)[:-1]:
                self._begin(name, jobs[name], threads)
            self._work(main, jobs[main], tick)
        finally:
            self._stop = self._stop or main not in self._results
            for thread in threads:
                thread.join()
        if self._fault:
            raise self._fault
        return Found(self._results["blake3"], self._results.get("leaves", b""), self._results.get("sha256", ""))

    def _begin(self, name: str, job: Job, threads: list[threading.Thread]) -> None:
        """In a thread of its own, unless that would take longer to start than to be done."""
        if self._range[2] <= _SMALL:
            self._work(name, job, lambda count: None)
            return
        thread = threading.Thread(target=self._aside, args=(name, job))
        thread.start()
        threads.append(thread)

    def _aside(self, name: str, job: Job) -> None:
        try:
            self._work(name, job, lambda count: None)
        except BaseException as error:
            self._fault, self._stop = error, True

    def _work(self, name: str, job: Job, tick: Tick) -> None:
        def step(count: int) -> None:
            if self._stop:
                raise _Stopped
            tick(count)

        with suppress(_Stopped):
            self._results[name] = job(step)

    def _leaves(self, tick: Tick) -> bytes:
        return leaves(*self._range, tick)

    def _blake3(self, tick: Tick) -> str:
        return flat(*self._range, blake3(), tick)

    def _sha256(self, tick: Tick) -> str:
        return flat(*self._range, hashlib.sha256(), tick)


class _Stopped(Exception):
    """Another pass has failed, or the user has interrupted."""
