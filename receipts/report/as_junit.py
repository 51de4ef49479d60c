"""A report as JUnit XML, in the form that Jenkins, GitLab and GitHub's actions read.

One test suite a model, one test case a receipt. A verdict against a receipt (10,
11, 12) is a failure; what kept the program from a verdict (1, 3, 14) is an error;
what cannot be judged here (13), or was not rerun, is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from receipts.report.rows import NOT_RERUN, Report, Row, reason, word
from receipts.report.shown import markup

_KINDS = {
    "IDENTICAL": "",
    NOT_RERUN: "skipped",
    "UNVERIFIABLE": "skipped",
    "UNREADABLE": "error",
    "FAULT": "error",
    "LIMIT": "error",
    "DIFFERS": "failure",
    "MALFORMED": "failure",
    "SIGNATURE": "failure",
}


def to_junit(report: Report) -> str:
    """The report as one XML document; what XML 1.0 forbids is written out as by ``shown.visible``."""
    suites: dict[str, list[Row]] = {}
    for row in report.rows:
        suites.setdefault(row.model, []).append(row)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="{markup(report.title)}" {_counts(report.rows)}>')
    for model, rows in suites.items():
        lines += _suite(report, model, rows)
    return "\n".join([*lines, "</testsuites>", ""])


def _suite(report: Report, model: str, rows: Sequence[Row]) -> list[str]:
    name = markup(model or "model not known")
    skipped = sum(_kind(row) == "skipped" for row in rows)
    facts = [f'<property name="{markup(key)}" value="{markup(value)}"/>' for key, value in report.facts]
    return [
        f'<testsuite name="{name}" {_counts(rows)} skipped="{skipped}">',
        *(["<properties>", *facts, "</properties>"] if facts else []),
        *[_case(name, row) for row in rows],
        "</testsuite>",
    ]


def _counts(rows: Sequence[Row]) -> str:
    kinds = [_kind(row) for row in rows]
    seconds = sum(row.seconds for row in rows)
    return (
        f'tests="{len(rows)}" failures="{kinds.count("failure")}" errors="{kinds.count("error")}" time="{seconds:.3f}"'
    )


def _kind(row: Row) -> str:
    return _KINDS[word(row.verdict)]


def _case(suite: str, row: Row) -> str:
    kind, sentence = _kind(row), markup(row.verdict.sentence)
    label = " ".join(filter(None, [word(row.verdict), markup(reason(row.verdict))]))
    finding = f'<{kind} type="{label}" message="{sentence}">{label}: {sentence}</{kind}>' if kind else ""
    output = f"<system-out>{_note(row)}</system-out>"
    return (
        f'<testcase classname="{suite}" name="{markup(row.file)}" time="{row.seconds:.3f}">{finding}{output}</testcase>'
    )


def _note(row: Row) -> str:
    """What is worth reading beside the finding, one item a line."""
    verdict = row.verdict
    items = [
        ("verdict", "" if _kind(row) else verdict.sentence),
        ("receipt_id", row.receipt_id),
        ("question_id", row.question_id),
        ("signature", verdict.signature),
        ("method", verdict.method),
        ("kept", "verdict of an earlier run" if row.is_kept else ""),
    ]
    return "\n".join(f"{name}: {markup(text)}" for name, text in items if text)
