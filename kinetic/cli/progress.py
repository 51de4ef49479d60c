"""One line of progress on standard error, for things that take longer than a moment."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

WIDTH = 30
FIRST_AFTER, EVERY = 0.4, 0.1
"""Seconds: what ends sooner shows nothing, and a terminal needs no more than ten updates a second."""


def news(line: str) -> None:
    """One line worth telling, such as why the first run takes longer."""
    from receipts.terminal import printable

    print(printable(f"kinetic: {line}"), file=sys.stderr, flush=True)


class Progress:
    """``with Progress("hashing") as bar: bar(done, total)``. Silent unless standard error is a terminal."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._shown = False
        self._next = time.monotonic() + FIRST_AFTER if sys.stderr.isatty() and not quiet else float("inf")

    def __call__(self, done: int, total: int) -> None:
        """Show ``done`` of ``total``, whatever the unit."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self._shown = now + EVERY, True
        share = min(done / total, 1.0) if total else 1.0
        filled = round(WIDTH * share)
        sys.stderr.write(f"\r{self._label} [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Wipe the line, if there is one."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()
