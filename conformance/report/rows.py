"""The data of a report, and how it is summed up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from conformance.suite import FAILED, PASSED, SKIPPED, Result, counts


class Report(NamedTuple):
    results: list[Result]
    facts: list[tuple[str, str]]
    """Shown at the top: program, arithmetic, engine, device, models."""
    exit_code: int
    is_part: bool = False
    """Only some cases were asked for."""


class Summary(NamedTuple):
    """One property, and how many of its cases came out how."""

    name: str
    property: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def summaries(report: Report) -> list[Summary]:
    groups: dict[str, list[Result]] = {}
    for result in report.results:
        groups.setdefault(result.id.partition("/")[0], []).append(result)
    return [_summary(name, results) for name, results in groups.items()]


def _summary(name: str, results: Sequence[Result]) -> Summary:
    table = counts(results)
    seconds = sum(result.seconds for result in results)
    return Summary(name, results[0].property, table[PASSED], table[FAILED], table[SKIPPED], seconds)


def headline(report: Report) -> str:
    """The verdict in a sentence. That all is well is said only where nothing was left out."""
    table = counts(report.results)
    parts = [f"{table[outcome]:,} {outcome}" for outcome in (PASSED, FAILED, SKIPPED)]
    counted = f"{len(report.results):,} cases: {', '.join(parts)}"
    if table[FAILED]:
        return f"This machine does not keep the promise. {counted}."
    if not table[PASSED]:
        return f"Nothing was shown. {counted}."
    if table[SKIPPED] or report.is_part:
        return f"What was tried here holds. {counted}."
    return f"This machine keeps the promise. {counted}."


def of_outcome(report: Report, outcome: str) -> list[Result]:
    return [result for result in report.results if result.outcome == outcome]
