"""For each receipt that differs: its tokens beside the rerun's, position by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from receipts.report.html_plot import gap_text, plot
from receipts.report.html_table import MAX_ROWS, badge
from receipts.report.rows import Row, word
from receipts.report.shown import html, token
from receipts.verify import Place, Verdict

NEAR = 40
"""Positions shown at either side of a difference; the others are folded away."""

MAX_POSITIONS = 12_000
"""Lines of all token tables together, about 200 bytes each: what a browser opens at once."""

_SECTION_COST = 40  # what heads and plot weigh, in lines


class Span(NamedTuple):
    """Positions ``start`` to ``end`` - 1 of a trail."""

    start: int
    end: int
    is_near: bool
    """Near a difference, so that it is shown unfolded."""


def sections(rows: Sequence[Row]) -> tuple[list[str], set[int]]:
    """HTML of the details, and for which rows there are any; what would make the file too large is left out."""
    found = [index for index, row in enumerate(rows[:MAX_ROWS]) if word(row.verdict) == "DIFFERS"]
    parts: list[str] = []
    linked: set[int] = set()
    room = MAX_POSITIONS
    for index in found:
        if room <= 0:
            break
        part, cost = _section(index, rows[index], room)
        parts.append(part)
        linked.add(index)
        room -= cost
    return ([_intro(), *parts, _unshown(len(found) - len(linked)), "</section>"] if found else []), linked


def _intro() -> str:
    return (
        '<section aria-labelledby="differences">\n<h2 id="differences">Differences</h2>\n'
        "<p>Each position shows the receipt&rsquo;s token and the token that the model draws there, given the prompt "
        "and the receipt&rsquo;s tokens before it. The gap is the distance of the two highest logits. "
        "At temperature 0, where it is large no rounding explains another token; where it is near 0, another "
        "arithmetic could.</p>"
    )


def _unshown(count: int) -> str:
    if not count:
        return ""
    noun = "receipt differs" if count == 1 else "receipts differ"
    return f"<p>{count:,} more {noun}: the table above says where, the JSON form lists their tokens.</p>"


def _section(index: int, row: Row, room: int) -> tuple[str, int]:
    """One receipt that differs, and what of ``room`` it took."""
    verdict = row.verdict
    trail = verdict.trail or (_place(verdict),)
    first = 0 if verdict.trail else verdict.position
    differing = [at for at, place in enumerate(trail) if place.expected != place.got]
    spans = spans_of(len(trail), differing)
    tables, cost = _tables(trail, first, spans, room - _SECTION_COST)
    text = "\n".join(
        [
            f'<article id="d{index}" aria-labelledby="h{index}">',
            f'<h3 id="h{index}">{badge("DIFFERS")} <span class="raw">{html(row.file)}</span></h3>',
            f'<p class="raw say">{html(verdict.sentence)}</p>',
            _facts(row),
            plot(trail, differing, f"p{index}") if len(trail) > 1 else "",
            *tables,
            f'<p class="back"><a href="#r{index}">Back to its row</a></p>\n</article>',
        ]
    )
    return text, cost + _SECTION_COST


def _place(verdict: Verdict) -> Place:
    return Place(verdict.expected, verdict.expected_text, verdict.got, verdict.got_text, verdict.gap)


def _facts(row: Row) -> str:
    verdict = row.verdict
    facts = [
        ("Receipt", row.receipt_id),
        ("Question", row.question_id),
        ("Model", row.model),
        ("Signature", verdict.signature),
        ("Method", verdict.method),
        ("Notes", "; ".join(verdict.notes)),
    ]
    kinds = {"Receipt": "raw hex", "Question": "raw hex"}
    items = [
        f'<div><dt>{name}</dt><dd class="{kinds.get(name, "raw")}">{html(value)}</dd></div>'
        for name, value in facts
        if value
    ]
    return '<dl class="facts">' + "".join(items) + "</dl>"


def spans_of(count: int, differing: Sequence[int]) -> list[Span]:
    """All ``count`` positions in order, cut where a stretch near a difference begins or ends."""
    spans: list[Span] = []
    end = 0
    for at in differing:
        start, stop = max(at - NEAR, end), min(at + NEAR + 1, count)
        if start > end:
            spans.append(Span(end, start, False))
        if spans and spans[-1].is_near:
            start = spans.pop().start
        spans.append(Span(start, stop, True))
        end = stop
    return spans + ([Span(end, count, False)] if end < count else [])


def _tables(trail: Sequence[Place], first: int, spans: Sequence[Span], room: int) -> tuple[list[str], int]:
    """The unfolded spans come first where room is short; at least one of them is shown, cut if need be."""
    parts: dict[Span, str] = {}
    left = max(room, 2 * NEAR + 1)
    for span in sorted(spans, key=lambda span: not span.is_near):
        size = span.end - span.start
        if span.is_near and size > left > 0:
            rest = Span(span.start + left, span.end, True)
            parts[span] = _table(trail, first, span._replace(end=rest.start)) + _missing(rest, first)
            left = 0
        elif size > left:
            parts[span] = _missing(span, first)
        else:
            parts[span] = _table(trail, first, span) if span.is_near else _folded(trail, first, span)
            left -= size
    return [parts[span] for span in spans], max(room, 2 * NEAR + 1) - left


def _range(span: Span, first: int) -> str:
    start, last = span.start + first, span.end - 1 + first
    return f"Position {start:,}" if start == last else f"Positions {start:,} to {last:,}"


def _missing(span: Span, first: int) -> str:
    says = "" if span.is_near else ", equal in both,"
    which = f"{_range(span, first)}{says}"
    return f'<p class="missing">{which} would make this page too large; the JSON form lists them.</p>'


def _folded(trail: Sequence[Place], first: int, span: Span) -> str:
    size = span.end - span.start
    summary = f"{_range(span, first)}: {size:,} equal in both"
    return f"<details><summary>{summary}</summary>{_table(trail, first, span)}</details>"


def _table(trail: Sequence[Place], first: int, span: Span) -> str:
    lines = [_line(at + first, trail[at]) for at in range(span.start, span.end)]
    return (
        f'<table class="tokens"><caption>{_range(span, first)}</caption><thead><tr><th scope="col">At</th>'
        '<th scope="col">Receipt</th><th scope="col">Id</th><th scope="col"><span class="hide">Equal?</span></th>'
        '<th scope="col">Rerun</th><th scope="col">Id</th><th scope="col">Gap</th></tr></thead>\n<tbody>'
        + "\n".join(lines)
        + "</tbody></table>"
    )


def _line(position: int, place: Place) -> str:
    differs = place.expected != place.got
    head = '<tr class="ne">' if differs else "<tr>"
    sign = '<b title="different">&ne;</b>' if differs else "="
    return (
        f'{head}<th scope="row">{position}</th><td>{token(place.expected_text)}</td><td>{place.expected}</td>'
        f"<td>{sign}</td><td>{token(place.got_text)}</td><td>{place.got}</td><td>{_gap(place.gap)}</td></tr>"
    )


def _gap(gap: float) -> str:
    return gap_text(gap) if math.isfinite(gap) else '<span title="no other token could be drawn">&infin;</span>'
