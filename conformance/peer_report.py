"""What came of the comparison with a peer: a table for people, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from conformance.peer_conditions import CONDITIONS, Row
from receipts.report.shown import visible

SHOWN = 8
"""Answers named in a cell; JSON has all."""


class Compared(NamedTuple):
    """``engines``: by name, the rows of each, the peer first."""

    model: str
    questions: int
    tokens: int
    reused: int
    """Tokens of prompts that the peer took from its cache under "prefix"."""
    engines: list[tuple[str, list[Row]]]


def to_json(found: Compared) -> str:
    engines = [{"name": name, "conditions": [_plain(row) for row in rows]} for name, rows in found.engines]
    return json.dumps({**found._asdict(), "engines": engines}, indent=1) + "\n"


def _plain(row: Row) -> dict[str, Any]:
    first = [{"answer": answer, "token": token} for answer, token in row.first.items()]
    named = {"condition": row.condition, "settings": row.settings, "answers": row.answers}
    return {**named, "changed": len(row.first), "first": first}


def to_markdown(found: Compared) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Compared) -> Iterator[str]:
    yield f"{found.questions} questions to {visible(found.model)}, greedy, {found.tokens} tokens each. The answer that"
    yield "a question gets alone is compared with the answer it gets under each condition."
    for name, rows in found.engines:
        yield from ("", f"{visible(name)}:", "")
        yield from table([_HEAD, *(_cells(row) for row in rows)])
    yield from ("", *(_sentence(name, rows) for name, rows in found.engines))
    if not found.reused:
        yield "The peer took nothing from its cache: its row about a cached prefix shows nothing."


_HEAD = ("condition", "settings", "answers that changed", "first token that differs (answer: token)")


def _cells(row: Row) -> tuple[str, ...]:
    named = [f"{answer}: {token}" for answer, token in [*row.first.items()][:SHOWN]]
    more = [f"{len(row.first) - SHOWN} more"] if len(row.first) > SHOWN else []
    first = ", ".join(named + more) or "-"
    return CONDITIONS[row.condition], row.settings, f"{len(row.first)} of {row.answers}", first


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def _sentence(name: str, rows: Sequence[Row]) -> str:
    changed, answers = sum(len(row.first) for row in rows), sum(row.answers for row in rows)
    return f"{visible(name)}: {changed} of {answers} answers changed."
