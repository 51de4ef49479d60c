"""What a driven engine was found to do, as a table for people, and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from conformance.peer_report import table
from conformance.suite import FAILED, PASSED, SKIPPED, Result, counts
from receipts.report.shown import visible

SHOWN = 50
"""Vectors named; JSON has all."""


def to_json(command: str, results: Sequence[Result]) -> str:
    vectors = [{"id": one.id, "kind": one.property, "outcome": one.outcome, "text": one.text} for one in results]
    return json.dumps({"command": command, "counts": counts(results), "vectors": vectors}, indent=1) + "\n"


def to_markdown(command: str, results: Sequence[Result]) -> str:
    return "\n".join(_lines(command, results)) + "\n"


def _lines(command: str, results: Sequence[Result]) -> Iterator[str]:
    yield from (f"`{visible(command)}` and the vectors:", "")
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.id.partition("/")[0], []).append(result)
    rows = [(name, *(str(number) for number in counts(found).values())) for name, found in groups.items()]
    yield from table([("vectors", "passed", "failed", "skipped"), *rows])
    failed = [result for result in results if result.outcome == FAILED]
    if failed:
        yield from ("", "Failed:", "")
        yield from (f"- `{visible(one.id)}`: {visible(one.text)}" for one in failed[:SHOWN])
    if len(failed) > SHOWN:
        yield f"- and {len(failed) - SHOWN} more: `--json` has all"
    reasons = Counter(result.text for result in results if result.outcome == SKIPPED)
    if reasons:
        yield from ("", "Skipped:", "")
        yield from (f"- {number}: {visible(why)}" for why, number in reasons.most_common(SHOWN))
    yield from ("", _headline(results))


def _headline(results: Sequence[Result]) -> str:
    found = counts(results)
    parts = ", ".join(f"{found[outcome]:,} {outcome}" for outcome in (PASSED, FAILED, SKIPPED))
    if found[FAILED]:
        verdict = "This engine does not do what the vectors expect"
    elif found[SKIPPED] or not found[PASSED]:
        verdict = "This engine was judged in part only"
    else:
        verdict = "This engine does what every vector expects"
    return f"{verdict}. {len(results):,} vectors: {parts}."
