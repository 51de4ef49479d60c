"""A report as Markdown: a table of properties, and every case that failed or was skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.report.rows import Report, headline, of_outcome, summaries
from conformance.suite import FAILED, SKIPPED
from receipts.report.shown import visible

_HEAD = ("property", "passed", "failed", "skipped", "seconds")


def to_markdown(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    for name, value in report.facts:
        yield f"- {name}: {visible(value)}"
    yield ""
    rows = [
        (one.name, str(one.passed), str(one.failed), str(one.skipped), f"{one.seconds:.1f}")
        for one in summaries(report)
    ]
    yield from _table([_HEAD, *rows])
    for title, outcome in (("Failed", FAILED), ("Skipped", SKIPPED)):
        found = of_outcome(report, outcome)
        if found:
            yield from ("", f"{title}:", "")
        for result in found:
            yield f"- `{visible(result.id)}`: {visible(result.text)}"
            if outcome == FAILED:
                yield f"  (property: {result.property})"
    yield from ("", headline(report))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    for number, row in enumerate(rows):
        first, *others = (f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(row))
        yield f"| {' | '.join([first, *others])} |"
        if number == 0:
            yield "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
