"""``kinetic doctor --attack-self``: every hostile file that we know how to make, against this installation."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetic.cli.progress import Progress

if TYPE_CHECKING:
    from conformance.attacks.suite import Report

SUCCEEDED = 1
"""Exit code if an attack is not refused as it must be: a fault of this program."""


def attack_self(options: Namespace) -> int:
    """Make every attack and print what came of them."""
    from conformance.attacks.suite import run_suite

    started = time.monotonic()
    with Progress("attacking", quiet=options.quiet) as bar:
        report = run_suite(bar)
    if options.json:
        import json

        print(json.dumps(report.plain(), ensure_ascii=False))
    else:
        from receipts.terminal import printable

        for line in _lines(report, time.monotonic() - started):
            print(printable(line))
    return SUCCEEDED if report.failed else 0


def _lines(report: Report, seconds: float) -> Iterator[str]:
    for result in report.failed:
        yield f"SUCCEEDED  {result.name}: {result.what} {result.problem}"
    reasons: dict[str, list[str]] = {}
    for result in report.skipped:
        reasons.setdefault(result.skipped, []).append(result.name)
    for reason, names in reasons.items():
        yield f"skipped    {', '.join(names)}: {reason}"
    yield (
        f"attacks    {len(report.results):,} made in {seconds:.1f} s: {report.passed:,} refused as they must be, "
        f"{len(report.failed):,} not, {len(report.skipped):,} skipped"
    )
    yield f"verdict    {_verdict(report)}"


def _verdict(report: Report) -> str:
    if report.failed:
        return f"not safe against what is listed, exit code {SUCCEEDED}: report it privately (SECURITY.md)"
    return "safe against what was tried" + (", not all was" if report.skipped else "")
