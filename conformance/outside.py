"""What ``python -m conformance.peer`` and ``.drive`` share: errors in a sentence, an end that leaves nothing behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from kinetic.errors import INTERRUPTED, TERMINATED, KineticError
from receipts.terminal import printable


def run(name: str, work: Callable[[], int]) -> int:
    """The exit code of ``work``, which may raise KineticError. SIGTERM ends it as an exception does."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        return work()
    except KineticError as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def bar(what: str, quiet: bool) -> Callable[[int, int], None] | None:
    """A line of progress on a terminal, wiped when all is done."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write("\r\x1b[K" if done == total else f"\r{done:,} of {total:,} {what}")
        sys.stderr.flush()

    return show


def news(line: str) -> None:
    wipe = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(wipe + printable(f"conformance: {line}"), file=sys.stderr, flush=True)
