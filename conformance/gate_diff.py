"""Where an answer differs, as a few lines of a diff: the words before, then the receipt's token beside this build's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from receipts.report.shown import visible

if TYPE_CHECKING:
    from receipts.schema import Record
    from receipts.verify import Place, Verdict

BEFORE, AFTER = 24, 8
"""Tokens of the answer that are shown before and after the one that differs."""


def lines(verdict: Verdict, record: Record) -> tuple[str, ...]:
    """Of a verdict that the answer, or its logits, differ; empty for any other."""
    if verdict.name == "LOGITS_DIFFER":
        return _of_logits(verdict, record)
    return _of_tokens(verdict, record) if verdict.name == "DIFFERS" else ()


def _of_tokens(verdict: Verdict, record: Record) -> tuple[str, ...]:
    at, count = verdict.position, len(record["output"]["tokens"])
    before = _text(verdict.trail[max(0, at - BEFORE) : at])
    after = _text(verdict.trail[at + 1 : at + 1 + AFTER])
    follows = f", then {_quoted(after)}" if after else ""
    later = sum(place.expected != place.got for place in verdict.trail[at + 1 :])
    found = [f"@@ token {at} of {count} @@"]
    found += [f"  {'... ' if at > BEFORE else ''}{_quoted(before)}"] if before else []
    found.append(f"- {_quoted(verdict.expected_text)} (id {verdict.expected}) in the receipt{follows}")
    found.append(f"+ {_quoted(verdict.got_text)} (id {verdict.got}) now; {_gap(verdict.gap)}")
    found += [f"  {later} of the {count - at - 1} tokens after it differ too"] if verdict.trail else []
    return tuple(found)


def _of_logits(verdict: Verdict, record: Record) -> tuple[str, ...]:
    at, count = verdict.position, len(record["logit_commit"])
    return (
        f"@@ row {at} of {count} of the logits @@",
        f"- digest {record['logit_commit'][at]} in the receipt, before token {_quoted(verdict.expected_text)}",
        f"+ another digest now, though the token is the same; {_gap(verdict.gap)}",
    )


def _text(places: tuple[Place, ...]) -> str:
    return "".join(place.expected_text for place in places)


def _quoted(text: str) -> str:
    """On one line, and nothing in it acts or hides."""
    return visible(repr(text))


def _gap(gap: float) -> str:
    if not math.isfinite(gap):
        return "no other token could be drawn"
    return f"the two best are {gap:.3f} apart" if gap >= 0.001 or gap == 0 else f"the two best are {gap:.1e} apart"
