"""Judges any implementation by the vectors: a program that answers JSON lines.

    python -m conformance.drive --cmd "./other-engine --conformance" [--only receipts] [--json]

``vectors/README.md`` describes the lines. ``python -m conformance.engine`` answers them with Kinetic.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from conformance import outside
from conformance.case import DoesNotHold, Skipped
from conformance.drive_judge import judge
from conformance.drive_process import Broken, Program
from conformance.drive_report import to_json, to_markdown
from conformance.drive_requests import Asked, all_asked
from conformance.suite import FAILED, PASSED, SKIPPED, Result, exit_code
from kinetic.errors import UsageError

PATIENCE = 60.0
"""Seconds for an answer."""

MOST_BROKEN = 5
"""A program that breaks off so often in a row is not asked again."""

Progress = Callable[[int, int], None]


def execute(options: Namespace, progress: Progress | None = None) -> int:
    """Ask and print; returns the exit code. ``options``: cmd, only, strict, form, patience. Raises UsageError."""
    command = split(options.cmd)
    asked = select(options.only)
    results = []
    with Program(command, getattr(options, "patience", PATIENCE)) as program:
        for result in drive(program, asked):
            results.append(result)
            if progress:
                progress(len(results), len(asked))
    code = exit_code(results, options.strict)
    sys.stdout.write((to_json if options.form == "json" else to_markdown)(options.cmd, results))
    return code


def split(text: str) -> list[str]:
    """The words of a command; no shell reads it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--cmd {text!r} can't be split into words: {error}", name="BAD_COMMAND") from error
    if not words:
        raise UsageError("--cmd needs a program", name="BAD_COMMAND")
    return words


def select(only: Sequence[str] = ()) -> list[Asked]:
    """The vectors whose id, or its beginning, or pattern, is in ``only``; all without. UsageError for one of none."""
    found = list(all_asked())
    for pattern in only:
        if not any(_matches(one.id, pattern) for one in found):
            raise UsageError(f"no vector is called {pattern!r}: receipts, bundles/place-far, 'ops/*'", name="NO_VECTOR")
    return [one for one in found if not only or any(_matches(one.id, pattern) for pattern in only)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/")


def drive(program: Program, asked: Sequence[Asked]) -> Iterator[Result]:
    """What became of each vector, as the answers come."""
    broken = 0
    with tempfile.TemporaryDirectory(prefix="kinetic-drive-") as folder:
        for one in asked:
            if broken == MOST_BROKEN:
                why = f"not asked, since the engine broke off {broken} times in a row"
                yield Result(one.id, one.kind, FAILED, why)
                continue
            try:
                line = program.ask(one.line(Path(folder)))
            except Broken as error:
                broken += 1
                yield Result(one.id, one.kind, FAILED, str(error))
                continue
            broken = 0
            yield _result(one, line)


def _result(one: Asked, line: bytes) -> Result:
    try:
        return Result(one.id, one.kind, PASSED, judge(one, line))
    except Skipped as why:
        return Result(one.id, one.kind, SKIPPED, str(why))
    except DoesNotHold as fault:
        return Result(one.id, one.kind, FAILED, str(fault))


# --- python -m conformance.drive ---


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m conformance.drive",
        description="Judge a program by the test vectors, over JSON lines.",
        epilog="exit codes: 0 all it was judged by holds; 10 a vector failed; 13 none passed, or --strict and one was"
        " skipped; 2 the program can't be run",
        allow_abbrev=False,
    )
    parser.add_argument("--cmd", required=True, metavar="CMD", help="the program and its arguments; no shell reads it")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these vectors (repeatable)")
    parser.add_argument("--strict", action="store_true", help="exit 13 if a vector was skipped")
    parser.add_argument("--timeout", dest="patience", type=float, default=PATIENCE, metavar="S", help="for an answer")
    parser.add_argument("--json", dest="form", action="store_const", const="json", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    bar = outside.bar("vectors", options.quiet)
    return outside.run("python -m conformance.drive", lambda: execute(options, bar))


if __name__ == "__main__":
    sys.exit(main())
