"""A program that is asked over JSON lines: a line to its standard input, a line from its standard output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from kinetic.errors import UsageError

MOST = 64 << 20
"""Bytes of an answer."""

END_WITHIN = 5.0
"""Seconds from the end of its input."""


class Broken(Exception):
    """The program gave no answer: it ended, or was ended since it took too long. The message says which."""


class Program:
    """Started when it is asked first, and anew after it broke off. Close it when done.

    It runs in a session of its own, so that what it starts ends with it.
    """

    def __init__(self, command: Sequence[str], patience: float) -> None:
        self._command, self._patience = command, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._pool = ThreadPoolExecutor(1)

    def ask(self, line: bytes) -> bytes:
        """The answer to one line. Raises Broken, and UsageError (NO_ENGINE) if there is no such program."""
        process = self._process or self._start()
        answer = self._pool.submit(_exchange, process, line)
        try:
            found = answer.result(self._patience)
        except TimeoutError:
            self._end(process)
            raise Broken(f"no answer within {self._patience:g} s") from None
        except BaseException:
            self._end(process)
            raise
        if not found.endswith(b"\n"):
            too_long = len(found) > MOST
            code = self._end(process, 0.0 if too_long else END_WITHIN)
            raise Broken(f"an answer of more than {MOST >> 20} MiB" if too_long else f"{code}: {self._last_line()}")
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{self._command[0]} can't be run: {error.strerror}", name="NO_ENGINE") from error
        return self._process

    def _end(self, process: subprocess.Popen[bytes], wait: float = 0.0) -> str:
        """Ends it after ``wait`` seconds, and says how it ended."""
        self._process = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        code = process.poll()
        with contextlib.suppress(OSError):  # also what it started, though it may be gone itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not sent can't be any more
                pipe and pipe.close()
        return "the engine closed its output" if code is None else f"the engine ended (exit {code})"

    def _last_line(self) -> str:
        number = self._log.fileno()
        text = os.pread(number, 4096, max(0, os.fstat(number).st_size - 4096)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "no message")

    def close(self) -> None:
        """Ends its input, and it, if it doesn't end by itself."""
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
            self._end(process, END_WITHIN)
        self._pool.shutdown()
        self._log.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._process is not None:
            self._end(self._process)
        self.close()


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """In a thread, since a program that doesn't read blocks a writer too. Without a line's end: it ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline(MOST + 1)
    except (OSError, ValueError):
        return b""
