"""What a gate found, for people who review a change and for the systems that run it: text, Markdown, JSON, JUnit, HTML.

Nothing here reads a file or a clock. Texts of receipts, models and folders are hostile: Markdown shows them only as
code, where nothing is a link, a mention or a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.gate_outcome import FAILED, PASSED, SKIPPED, Outcome, Result, reasons
from receipts.report import Report, json_row, to_html
from receipts.report.as_json import _plain
from receipts.report.shown import clip, markup, visible

SHOWN = 20
"""Outcomes that Markdown shows in full; the others are counted."""

MOST_LINE, MOST_TEXT = 400, 60_000
"""Characters of a line, and of all: a comment on GitHub holds 65,536."""


# --- a terminal ---


def text_of(outcome: Outcome) -> list[str]:
    """Lines about an outcome that did not pass."""
    lines = [f"{visible(outcome.subject)}: {outcome.status.upper()} ({outcome.name}): {visible(outcome.sentence)}"]
    lines += [f"  {line}" for line in outcome.diff]
    return lines + [f"    {visible(note)}" for note in outcome.notes]


def summary(result: Result) -> list[str]:
    """The skipped, by reason, then the counts."""
    lines = []
    for (group, name, sentence), found in reasons(result.of(SKIPPED)).items():
        what = _counted(group, found)
        lines.append(f"skipped ({name}): {visible(what)}: {visible(sentence)}")
    code = result.exit_code
    return [*lines, f"{'closed' if code else 'open'}: {result.headline}" + (f" Exit code {code}." if code else "")]


def _counted(group: str, found: Sequence[Outcome]) -> str:
    if len(found) == 1:
        return found[0].subject
    return f"{len(found)} {'speeds' if found[0].is_speed else f'receipts of {group}'}"


# --- Markdown ---


def markdown(result: Result) -> str:
    """A comment on a pull request, or a step's summary."""
    text = "\n".join(_markdown(result))
    if len(text) > MOST_TEXT:
        kept = _markdown(result, details=False)
        text = "\n".join([*kept, "", "The differences are too long for a comment: the JSON report has them."])
    return text + "\n"


def _markdown(result: Result, *, details: bool = True) -> Iterator[str]:
    code = result.exit_code
    yield f"### Kinetic gate: {f'closed, exit code {code}' if code else 'open'}"
    yield ""
    yield result.headline
    rows = list(_rows(result))
    if rows:
        yield from ("", "| | what | result |", "|---|---|---|")
        yield from rows[: 2 * SHOWN]
        if len(rows) > 2 * SHOWN:
            yield f"| | {len(rows) - 2 * SHOWN} more | |"
    failed = [one for one in result.of(FAILED) if one.diff or one.notes]
    for outcome in failed[:SHOWN] if details else ():
        yield from ("", *_details(outcome))
    if details and len(failed) > SHOWN:
        yield from ("", f"{len(failed) - SHOWN} more differ; the JSON report has them.")
    yield from ("", *(f"{name}: {_code(value)}  " for name, value in result.facts))


def _rows(result: Result) -> Iterator[str]:
    """What failed, each speed that was judged, and why things were skipped."""
    for one in result.of(FAILED):
        yield _row("**failed**", one.subject, one)
    for (group, _, _), found in reasons(result.of(SKIPPED)).items():
        yield _row("skipped", _counted(group, found), found[0])
    for one in result.of(PASSED):
        if one.is_speed:
            yield _row("passed", one.subject, one)
    answers = [one for one in result.of(PASSED) if not one.is_speed]
    for (group, _, _), found in reasons([one._replace(sentence="") for one in answers]).items():
        yield f"| passed | {_code(_counted(group, found))} | {found[0].name} |"


def _row(status: str, what: str, one: Outcome) -> str:
    return f"| {status} | {_code(what)} | {one.name}: {_code(one.sentence)} |"


def _details(outcome: Outcome) -> Iterator[str]:
    lines = [*map(_short, outcome.diff), *(f"  {_short(visible(note))}" for note in outcome.notes)]
    fence = _fence(lines, 3)
    yield f"<details open><summary><code>{markup(clip(outcome.subject, MOST_LINE))}</code></summary>"
    yield from ("", f"{fence}diff", *lines, fence, "", "</details>")


def _short(line: str) -> str:
    return clip(line, MOST_LINE)


def _code(text: str) -> str:
    """Hostile text in a line or a cell, as a code span: no mention, no link and no tag is made of what is in it."""
    shown = visible(clip(text, MOST_LINE)).replace("|", "\\x7c")
    fence = _fence([shown], 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown or ' '}{fence}"


def _fence(lines: Sequence[str], least: int) -> str:
    """Backticks, more of them than stand anywhere in these lines one after the other."""
    longest = max((len(run[0]) for line in lines for run in re.finditer("`+", line)), default=0)
    return "`" * max(least, longest + 1)


# --- for programs ---


def to_json(result: Result) -> str:
    """One object; the verdict of each receipt is that of ``kinetic audit --json``."""
    head = {
        "type": "kinetic-gate-report",
        "version": 1,
        "exit_code": result.exit_code,
        "headline": result.headline,
        "counts": {status: len(result.of(status)) for status in (PASSED, FAILED, SKIPPED)},
        "facts": [{"name": name, "value": value} for name, value in result.facts],
        "outcomes": list(map(_outcome, result.outcomes)),
    }
    return json.dumps(_plain(head), allow_nan=False) + "\n"


def _outcome(one: Outcome) -> dict[str, Any]:
    about = one._asdict()
    row = about.pop("row")
    return about | {"seconds": round(one.seconds, 3), "verdict": json_row(row) if row else {}}


def to_junit(result: Result) -> str:
    """One suite for each model, one for speeds. What differs, is malformed or slower is a failure, else an error."""
    groups: dict[str, list[Outcome]] = {}
    for one in result.outcomes:
        groups.setdefault(one.group, []).append(one)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="kinetic gate" {_counts(result.outcomes)}>']
    facts = [f'<property name="{markup(name)}" value="{markup(value)}"/>' for name, value in result.facts]
    for group, outcomes in groups.items():
        name = markup(group or "model not known")
        lines.append(f'<testsuite name="{name}" {_counts(outcomes)} skipped="{_count(outcomes, "skipped")}">')
        lines += ["<properties>", *facts, "</properties>", *(_case(name, one) for one in outcomes), "</testsuite>"]
    return "\n".join([*lines, "</testsuites>", ""])


def _kind(one: Outcome) -> str:
    if one.status == FAILED:
        return "error" if one.exit_code in (1, 3, 13, 14) else "failure"
    return "skipped" if one.status == SKIPPED else ""


def _count(outcomes: Sequence[Outcome], kind: str) -> int:
    return sum(_kind(one) == kind for one in outcomes)


def _counts(outcomes: Sequence[Outcome]) -> str:
    seconds = sum(one.seconds for one in outcomes)
    failures, errors = _count(outcomes, "failure"), _count(outcomes, "error")
    return f'tests="{len(outcomes)}" failures="{failures}" errors="{errors}" time="{seconds:.3f}"'


def _case(suite: str, one: Outcome) -> str:
    kind, sentence = _kind(one), markup(one.sentence)
    lines = "\n".join(markup(line) for line in (*one.diff, *one.notes))
    finding = f'<{kind} type="{one.name}" message="{sentence}">{lines}</{kind}>' if kind else ""
    return f'<testcase classname="{suite}" name="{markup(one.subject)}" time="{one.seconds:.3f}">{finding}</testcase>'


# --- a page ---


def to_page(result: Result) -> str:
    """The receipts as ``kinetic audit --html`` shows them; the gate's own words and the speeds stand above."""
    speeds = [one for one in result.outcomes if one.is_speed]
    facts = [("gate", f"{'closed' if result.exit_code else 'open'}: {result.headline}"), *result.facts]
    facts += [(one.subject, f"{one.status} ({one.name}): {one.sentence}") for one in speeds]
    return to_html(Report([one.row for one in result.outcomes if one.row], "Gate", facts))
